"""Lower accuracy is only used if the user allows it, and is reported."""

from __future__ import annotations

import numpy as np
import pytest
from command_line import INFER, VOLUME, attributes, read_main, refused, succeeds, voxels
from fakes import Fake, fake_catalogue
from tiny_network import close, whole

import znni
from znni.core.errors import InvalidInput
from znni.network.network import Network
from znni.network.weights import Weights
from znni.plans.primitive import convolved

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "nothing_partial")


def has_inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a faster convolution that is less accurate."""
    inexact = Fake("inexact", convolved, flops=10.0, accuracy=5e-3)
    monkeypatch.setattr(
        "znni.inference.planning.catalogue", lambda _machine: fake_catalogue(inexact)
    )


def test_less_accuracy_is_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    has_inexact(monkeypatch)
    plan = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")
    assert "inexact" not in succeeds(*plan)
    assert "inexact" not in succeeds(*plan, "--accuracy", "tf32")
    assert "accuracy" not in succeeds(*plan, "--accuracy", "float32")
    line = "accuracy      bfloat16 in conv1, conv2: relative errors of up to 0.01 a layer\n"
    table = succeeds(*plan, "--accuracy", "bfloat16", "--out", "inexact.json")
    assert "inexact" in table
    assert table.endswith(line)
    assert succeeds(*INFER, "--dry-run", "--accuracy", "bfloat16").endswith(line)
    said = succeeds(*INFER, "--accuracy", "bfloat16")
    assert "; accuracy bfloat16 in conv1, conv2: " in said
    assert attributes()["accuracy"] == "bfloat16"
    assert "accuracy" not in succeeds(*INFER, "--overwrite")
    assert attributes()["accuracy"] == "float32"


def test_a_plan_of_less_accuracy_is_run_only_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_inexact(monkeypatch)
    plan = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")
    succeeds(*plan, "--accuracy", "bfloat16", "--out", "inexact.json")
    for arguments in ((), ("--dry-run",)):
        assert refused(*INFER, "--plan", "inexact.json", *arguments).startswith(
            "the plan runs layer conv1 by inexact, whose accuracy is bfloat16; give "
            "--accuracy bfloat16 to allow that, or plan again with znni plan --out"
        )
    allowed = (*INFER, "--plan", "inexact.json", "--accuracy", "bfloat16")
    assert "accuracy      bfloat16 in conv1" in succeeds(*allowed, "--dry-run")
    assert "; accuracy bfloat16 in conv1" in succeeds(*allowed)
    assert close(read_main("out.h5"), whole())


def test_less_accuracy_than_there_is_to_have(monkeypatch: pytest.MonkeyPatch) -> None:
    without = "float32: bfloat16 is allowed, and the processor has no instructions for it"
    assert succeeds(*INFER, "--accuracy", "bfloat16", "--dry-run").endswith(f"  {without}\n")
    assert without in succeeds(*INFER, "--accuracy", "bfloat16")
    has_inexact(monkeypatch)
    succeeds("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--out", "plan.json")
    planned = ("--plan", "plan.json", "--accuracy", "bfloat16")
    shown = succeeds(*INFER, "--dry-run", "--overwrite", *planned)
    assert "float32: bfloat16 is allowed, but the plan does not use it\n" in shown
    said = refused(*INFER, "--accuracy", "float16")
    assert "--accuracy is 'float16'; choose one of float32, tf32, bfloat16" in said


def test_the_library_takes_less_accuracy_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, network: Network, weights: Weights
) -> None:
    has_inexact(monkeypatch)
    plan = znni.plan(network, VOLUME, accuracy="bfloat16")
    assert "inexact" in plan.to_json()
    assert "inexact" not in znni.plan(network, VOLUME).to_json()
    out = np.empty((2, 6, 15, 16), np.float32)
    report = znni.infer(voxels(), network, out, weights=weights, accuracy="bfloat16", plan=plan)
    assert report.attributes["accuracy"] == "bfloat16"
    assert "; accuracy bfloat16 in conv1, conv2" in str(report)
    with pytest.raises(InvalidInput, match=r"conv1 by inexact.*--accuracy bfloat16"):
        znni.infer(voxels(), network, out, weights=weights, plan=plan)
    with pytest.raises(InvalidInput, match=r"conv1 by inexact.*--accuracy bfloat16"):
        znni.Inferer(network, weights, plan)(voxels())
    for given in (plan, None):
        inferer = znni.Inferer(network, weights, given, accuracy="bfloat16")
        np.testing.assert_array_equal(inferer(voxels()), out)
