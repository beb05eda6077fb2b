"""Plans for a machine that is not here: the costs they use, and what reports say of them."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Unpack

import pytest
from calibration_cases import slow
from command_line import read_main, refused, succeeds
from fakes import Fake, fake_catalogue
from paths import MACHINES, NETWORKS

import znni
from planner.cost_model import NOT_HERE
from znni.calibration.choice import cost_model
from znni.calibration.database import CostDatabase
from znni.calibration.record import record
from znni.core.memory_errors import DoesNotFit
from znni.core.plan_options import PlanOptions
from znni.core.text import in_units
from znni.machine.machine_file import load_machine
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, convolved
from znni.primitives.catalogue import catalogue

THERE = """\
host: {name: there, memory: 40GiB, threads: 3, flops: 300 Gflop/s, bandwidth: 30 GB/s}
gpus:
  - &card {name: Card, memory: 12GiB, flops: 6 Tflop/s, bandwidth: 300 GB/s}
  - *card
"""
PLAN = ("plan", "--net", "tiny.yaml", "--volume", "7,20,23", "--machine", "there.yaml")
INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5")


@pytest.fixture
def primitives(small_case: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    """A good case with ``there.yaml``, and two convolutions. The one declared faster is slower."""
    (small_case / "there.yaml").write_text(THERE)
    found = fake_catalogue(Fake("declared", convolved, 50.0), Fake("measured", convolved, 60.0))
    del found["conv"]
    monkeypatch.setattr("znni.inference.planning.catalogue", lambda _machine: found)
    return found


@pytest.fixture
def measured(primitives: Catalogue, database: CostDatabase) -> None:
    """Costs measured on this machine, under the same device name."""
    for name, factor in (("declared", 3.0), ("measured", 1.0)):
        record(slow(primitives[name], factor), database)


def convolutions(plan: Plan) -> set[str]:
    steps = (step for segment in plan.segments for step in segment.steps)
    return {step.primitive for step in steps if step.conv}


@pytest.mark.usefixtures("measured")
def test_costs_measured_here_are_not_those_of_another_machine(primitives: Catalogue) -> None:
    assert convolutions(znni.plan("tiny.yaml", (7, 20, 23), ram="4GiB")) == {"measured"}
    plan = znni.plan("tiny.yaml", (7, 20, 23), machine="there.yaml")
    assert convolutions(plan) == {"declared"}
    assert plan.costs == "a model of flops and bytes, for a machine that is not this one"
    assert cost_model(primitives, "built-in", absent=True).source == NOT_HERE
    assert refused(*PLAN, "--costs", "measured") == (
        "measured costs hold for this machine, and the plan is for another; give --costs built-in"
    )


@pytest.mark.usefixtures("measured")
def test_what_is_printed() -> None:
    table = succeeds(*PLAN, "--explain")
    assert (
        "machine       there, 3 threads, 36.00 GiB allowed\n"
        "              beside 2 x Card, not used\n"
    ) in table
    assert "(a model of flops and bytes, for a machine that is not this one)\n" in table
    assert re.search(r" measured +0\.000 s +1\.\d\dx the time\n", table)  # by what it declares
    less = succeeds(*PLAN, "--ram", "2GiB", "--threads", 1)
    assert "machine       there, 1 thread, 2.00 GiB allowed\n" in less
    assert "beside" not in succeeds(*PLAN[:-2])


@pytest.mark.usefixtures("primitives")
def test_mistakes() -> None:
    said = refused(*PLAN[:-1], "none.yaml")
    assert said.startswith("none.yaml: no such machine file, and no machine of this name comes ")
    assert "unknown key 'name' in the machine" in refused(*PLAN[:-1], "tiny.yaml")
    assert "0 threads cannot compute; give at least 1 (of 3)" in refused(*PLAN, "--threads", 0)
    assert "no plan fits" in refused(*PLAN, "--ram", "1MB", code=3)


@pytest.mark.usefixtures("primitives")
def test_a_plan_for_another_machine_is_checked_where_it_is_run() -> None:
    succeeds(*PLAN, "--out", "plan.json")
    run = (*INFER, "--plan", "plan.json")
    assert "1 MiB are allowed; give --ram " in refused(*run, "--ram", "1MiB")
    assert "the plan is for 3 threads, not 2; give --threads 3" in refused(*run, "--threads", 2)
    assert "for a machine that is not this one" in succeeds(*run)
    there = read_main("out.h5")
    succeeds(*INFER, "--overwrite")
    assert (there == read_main("out.h5")).all()


@pytest.mark.parametrize("path", sorted(MACHINES.glob("*.yaml")), ids=lambda path: path.stem)
def test_primitives_are_those_of_the_machine_described(path: Path) -> None:
    machine = load_machine(path)
    found = catalogue(machine)
    assert {primitive.device for primitive in found.values()} == {machine.host, *machine.gpus[:1]}
    alone = catalogue(machine, "cpu")
    assert any("bfloat16" in name for name in alone) == machine.host.bfloat16
    assert machine.host.bfloat16 == path.stem.startswith("h200")


@pytest.mark.slow
def test_primitives_of_other_processors_are_not_loaded() -> None:
    code = f"""
import sys
from pathlib import Path
from znni.core.plan_options import PlanOptions
from znni.machine.machine_file import load_machine
from znni.primitives.catalogue import catalogue
machine = load_machine(Path({str(MACHINES / "h200-node.yaml")!r}))
found = catalogue(machine, "gpu")
assert found and all(primitive.device == machine.gpus[0] for primitive in found.values())
assert "numba" not in sys.modules
assert all(primitive.device == machine.host for primitive in catalogue(machine, "cpu").values())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_real_plan_for_each_machine_here() -> None:
    network = znni.load_network(MACHINES.parent / "networks" / "boundaries.yaml")
    rates = {
        path.stem: znni.plan(
            network, (256, 256, 256), machine=path, ram="8GiB", device="cpu"
        ).voxels_per_second
        for path in MACHINES.glob("*.yaml")
    }
    assert rates["e7"] == rates["titanx-e7"]
    assert rates["laptop"] < rates["e7"] < rates["h200-node"]


@pytest.mark.slow
def test_the_processors_alone_are_a_remedy_if_a_gpus_libraries_take_too_much() -> None:
    """The error names them only if the network fits on them."""

    def made(ram: str, **options: Unpack[PlanOptions]) -> Plan:
        network, machine = NETWORKS / "cells-unet.yaml", MACHINES / "rtx4090.yaml"
        return znni.plan(network, (64, 64, 64), machine=machine, ram=ram, **options)

    def short(ram: str, **options: Unpack[PlanOptions]) -> DoesNotFit:
        with pytest.raises(DoesNotFit) as caught:
            made(ram, **options)
        return caught.value

    said = short("1GiB")
    needed = said.without_gpu
    assert f" or device='cpu' (--device cpu), which needs {in_units(needed)}, or use" in str(said)
    assert short("1GiB", device="gpu").without_gpu == 0
    assert short(f"{needed - 1}").without_gpu == 0
    assert made(f"{needed}", device="cpu").device == "cpu"
    least = short("513MiB", device="cpu")
    assert (least.needed, least.without_gpu) == (needed, 0)
    assert "--device" not in str(least)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "used", "warned"),
    [
        ({"gpu_memory": "8MiB"}, "cpu", True),
        ({"device": "cpu"}, "cpu", False),
        ({"gpu_memory": "8GiB"}, "gpu", False),
    ],
)
def test_a_gpu_without_room_for_a_plan_is_told_of(
    limits: PlanOptions, used: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    machine = MACHINES / "rtx4090.yaml"
    network = NETWORKS / "cells-unet.yaml"
    assert znni.plan(network, (512, 512, 512), machine=machine, **limits).device == used
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == warned
    if warned:
        assert said[0].startswith("no GPU is used: no plan fits: ")
        assert " on the gpu, " in said[0]
        assert " and 8 MiB are allowed; give gpu_memory=" in said[0]
