"""``micro_batches``: the user chooses the sizes of the pieces that a batch may be cut into."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from command_line import VOLUME, attributes, read_main, refused, succeeds
from fakes import Fake, fake_catalogue

import znni
from znni.core.option_types import Division
from znni.core.shapes import Shape5
from znni.network.layers import Operation
from znni.plans.cost import Cost
from znni.plans.plan import Plan
from znni.plans.primitive import convolved

PLAN = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--json")
INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5")
CHOSEN: dict[Division, str] = {
    "none": "uneven",
    "power-of-two": "2x2 uneven",
    "all": "1x1 uneven + 1x3 uneven",
}


class Uneven(Fake):
    """Faster with three items than with two, and with two than with one or four."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        cost = super().cost(layer, shape)
        return replace(cost, flops={1: 12, 2: 10, 3: 1, 4: 11}.get(shape.n, 1) * cost.flops)


pytestmark = pytest.mark.usefixtures("small_case")


@pytest.fixture(autouse=True)
def four_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network whose second convolution has a batch of four fragments."""
    primitives = fake_catalogue() | {"conv": Uneven("uneven", convolved, flops=1e4)}
    catalogue = {primitive.name: primitive for primitive in primitives.values()}
    monkeypatch.setattr("znni.inference.planning.catalogue", lambda _machine: catalogue)


def last_of(plan: Plan) -> str:
    return str(plan.steps[-1].primitive)


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "primitive"), CHOSEN.items())
def test_commands_and_library_plan_with_the_pieces_that_are_asked_for(
    chosen: Division, primitive: str
) -> None:
    option = ("--micro-batches", chosen)
    assert last_of(Plan.from_json(succeeds(*PLAN, *option))) == primitive
    assert last_of(znni.plan("tiny.yaml", VOLUME, micro_batches=chosen)) == primitive
    assert f" {primitive} " in succeeds(*INFER, "--dry-run", *option)
    succeeds(*INFER, *option)
    assert last_of(Plan.from_json(attributes()["plan"])) == primitive
    inferer = znni.Inferer("tiny.yaml", micro_batches=chosen)
    assert inferer(np.zeros(VOLUME, np.float32)).shape == read_main("out.h5").shape


@pytest.mark.slow
def test_powers_of_two_unless_told_otherwise() -> None:
    assert last_of(Plan.from_json(succeeds(*PLAN))) == CHOSEN["power-of-two"]
    assert last_of(znni.plan("tiny.yaml", VOLUME)) == CHOSEN["power-of-two"]


def test_other_names_are_refused() -> None:
    assert "'some'; choose one of none, power-of-two, all" in refused(
        *PLAN, "--micro-batches", "some"
    )
    with pytest.raises(znni.ZnniError, match="micro_batches is 'some'; choose one of none, power"):
        znni.plan("tiny.yaml", VOLUME, micro_batches="some")  # type: ignore[arg-type]
