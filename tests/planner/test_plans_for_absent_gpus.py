"""Plans for an absent machine with GPUs: how they are shown, checked and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import refused, succeeds
from fakes import fake_catalogue, fake_gpu_catalogue, gpu

import znni
from znni.core.errors import InvalidInput
from znni.core.plan_options import Choices
from znni.engine.backends.cuda.part_runner import room_to_compile
from znni.engine.checks import check_runnable
from znni.inference import planning
from znni.inference.plan_checks import checked_plan
from znni.inference.request import open_request, request_for
from znni.machine.detect import detect_machine
from znni.machine.machine import Machine, limited
from znni.plans.plan import Plan
from znni.plans.plan_file import load_plan
from znni.plans.stored_values import Stored

pytestmark = pytest.mark.usefixtures("there")

THERE = """\
host: {name: there, memory: 40GiB, threads: 3, flops: 300 Gflop/s, bandwidth: 30 GB/s}
gpus:
  - &card {name: Card, memory: 12GiB, flops: 6 Tflop/s, bandwidth: 300 GB/s, capability: 5.2}
  - *card
"""
PLAN = ("plan", "--net", "tiny.yaml", "--volume", "7,20,23", "--machine", "there.yaml")
THERE_ON_GPU = (*PLAN, "--device", "gpu")


@pytest.fixture
def there(small_case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's file beside the small case, and primitives for its processor and cards."""
    (small_case / "there.yaml").write_text(THERE)
    both = fake_catalogue() | fake_gpu_catalogue()

    def of(machine: Machine) -> dict[str, object]:
        return {
            name: replace(found, device=machine.host if found.device.kind == "cpu" else card)
            for name, found in both.items()
            for card in machine.gpus[:1] or [None]
            if found.device.kind == "cpu" or card
        }

    monkeypatch.setattr("znni.inference.planning.catalogue", of)


@pytest.mark.slow
def test_plans_for_a_gpu_that_is_not_here() -> None:
    table = succeeds(*THERE_ON_GPU, "--gpu-memory", "2GiB", "--out", "plan.json")
    assert "layers on Card, 2.00 GiB allowed\n              beside 1 x Card, not used\n" in table
    assert "of the GPU: process" in table
    assert "gpu_conv" in table
    on_host = succeeds(*PLAN, "--device", "cpu")
    assert "gpu_conv" not in on_host
    assert "beside 2 x Card, not used\n" in on_host
    assert "on the gpu" in refused(*THERE_ON_GPU, "--gpu-memory", "9MB", code=3)
    assert "gpu_conv" not in succeeds(*PLAN)  # auto: for so little, a GPU takes longer to begin
    assert "0 bytes of GPU memory hold nothing" in refused(*PLAN, "--gpu-memory", "0")
    with pytest.raises(InvalidInput, match="device is 'tpu'; choose one of auto, cpu, gpu"):
        znni.plan("tiny.yaml", (7, 20, 23), device="tpu")  # type: ignore[arg-type]
    found = znni.search("tiny.yaml", (7, 20, 23), machine="there.yaml", device="gpu")
    for plan in found.fastest(2):
        assert plan.gpu.name == "Card"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", ">i2", "float32"])
def test_a_plan_takes_values_for_scaled_on_a_gpu_exactly_if_a_run_does(dtype: str) -> None:
    shape, there = (7, 20, 23), Path("there.yaml")
    values = np.ones(shape, dtype)
    network = znni.load_network("tiny.yaml")
    run = open_request(request_for(values, network, np.empty(0))).stored
    expected = values.itemsize if run.scaled_on_gpu else 4
    on_gpu: Any = {"machine": there, "device": "gpu"}
    plan = znni.plan(network, shape, input_dtype=values.dtype, **on_gpu)
    assert plan.input_itemsize == expected
    with h5py.File("typed.h5", "w") as file:
        file["volume"] = values
    shown = succeeds(*THERE_ON_GPU[:3], "--volume", "typed.h5", *THERE_ON_GPU[5:], "--json")
    assert Plan.from_json(shown).input_itemsize == expected
    assert Plan.from_json(shown).memory == plan.memory


@pytest.mark.slow
def test_the_type_of_the_input_is_given_once() -> None:
    there: Any = {"machine": "there.yaml", "device": "gpu"}
    for itemsize, usual in ((1, "uint8"), (2, "uint16"), (4, "float32"), (8, "float64")):
        found, alike = (
            znni.plan("tiny.yaml", (7, 20, 23), **there, **given)
            for given in ({"input_itemsize": itemsize}, {"input_dtype": usual})
        )
        assert found == alike
    assert znni.plan("tiny.yaml", (7, 20, 23), **there).input_itemsize == 4
    with pytest.raises(InvalidInput, match="are both given; leave out input_itemsize"):
        znni.plan("tiny.yaml", (7, 20, 23), input_dtype="uint8", input_itemsize=1)
    for wrong in ("grey", "complex64", object):
        with pytest.raises(InvalidInput, match="is not a type of real numbers; give a NumPy type"):
            znni.plan("tiny.yaml", (7, 20, 23), input_dtype=wrong)


@pytest.mark.parametrize("gpus", [1, 2])
def test_processes_that_compile_take_what_the_run_leaves(gpus: int) -> None:
    """The first block is read meanwhile, by this process or for its workers."""
    there = {"machine": "there.yaml", "device": "gpu", "gpus": gpus, "ram": "8GiB"}
    plan = znni.plan("tiny.yaml", (7, 20, 23), **there)  # type: ignore[arg-type]
    assert plan.workers == gpus
    alone = replace(plan, machine=replace(plan.machine, used_gpus=1))
    assert room_to_compile(alone) == 8 * 2**30 - plan.memory.total


def test_plans_for_several_gpus() -> None:
    Path("there.yaml").write_text(f"{THERE}  - *card\n")
    of_several = "; 2 patches at a time, which one process reads and writes: "
    assert of_several not in succeeds(*PLAN, "--device", "gpu")
    table = succeeds(*PLAN, "--gpus", "2")
    assert of_several in table
    assert "layers on each of 2 x Card, " in table
    assert "beside 1 x Card, not used" in table
    assert "there are 3 GPUs" in refused(*PLAN, "--gpus", "4")


def test_a_plan_for_a_gpu_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    succeeds(*THERE_ON_GPU, "--out", "plan.json")
    monkeypatch.setattr("znni.machine.gpus.why_no_gpu", lambda: "CUDA finds no GPU")
    monkeypatch.setattr("znni.inference.gpu_choice.why_no_gpu", lambda: "CUDA finds no GPU")
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--plan", "plan.json")
    assert "the plan runs layers on Card: CUDA finds no GPU; or plan again" in refused(*run)
    assert "runs the layers on the GPU, not the CPU; give --device gpu" in refused(
        *run, "--device", "cpu"
    )


def test_a_plan_for_a_gpu_keeps_to_its_memory_here(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = znni.plan("tiny.yaml", (7, 20, 23), machine="there.yaml", threads=1, device="gpu")
    found = replace(detect_machine(threads=1), gpus=(gpu(2**33),))
    monkeypatch.setattr(
        "znni.inference.plan_checks.detect_for",
        lambda _device, ram, threads, gpu_memory: limited(found, ram, threads, gpu_memory),
    )
    checked = checked_plan(plan, plan.network, stored=Stored("uint8"))
    assert checked.gpu.name == "fake GPU"
    assert checked.device_memory.working == plan.device_memory.working
    assert checked.device_memory.blocks < plan.device_memory.blocks
    with pytest.raises(InvalidInput, match=r"of the GPU and .* are allowed; give gpu_memory="):
        checked_plan(plan, plan.network, Choices(gpu_memory=plan.device_memory.total - 1))


def test_plans_with_layers_on_both() -> None:
    table = succeeds(*PLAN, "--device", "cpu+gpu", "--out", "plan.json")
    assert "the first 1 layer on the host, the others on Card" in table
    assert "; of a patch reading 0.000 s, host layers 0.0" in table
    assert "transfer 0.0" in table
    on_gpu = [line for line in table.splitlines() if "gpu_" in line]
    assert 0 < len(on_gpu) < len(znni.load_network("tiny.yaml").layers)
    plan = load_plan(Path("plan.json"))
    assert plan.device == "cpu+gpu"
    assert plan.layers_on_host == 1
    on_host, on_gpu = plan.parts
    assert on_host.output_shape == on_gpu.input_shape
    assert plan.memory.working == on_host.working_peak()[0] >= on_gpu.input_shape.nbytes
    assert plan.gpu_memory is not None
    assert plan.gpu_memory.working == on_gpu.working_peak()[0]
    blocks = plan.memory.blocks
    alone = znni.plan("tiny.yaml", (7, 20, 23), machine="there.yaml", device="cpu").memory.blocks
    assert blocks == alone + on_gpu.input_shape.nbytes  # as one is made, another is taken
    assert "--device cpu+gpu: " in refused(*PLAN[:5], "--device", "cpu+gpu")
    assert "gpu_conv" in succeeds(*PLAN, "--device", "cpu+gpu", "--explain")
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--plan", "plan.json", "--device", "gpu")
    assert "runs the layers on the CPU+GPU, not the GPU; give --device cpu+gpu" in refused(*run)


def test_a_plan_never_goes_back_to_the_host() -> None:
    plan = znni.plan("tiny.yaml", (7, 20, 23), machine="there.yaml", device="cpu+gpu")
    first, last = plan.segments
    for segments in (
        (replace(first, device="gpu"), replace(last, device="cpu")),
        (first, replace(last, device="cpu")),
    ):
        wrong = replace(plan, segments=segments).to_json()
        with pytest.raises(InvalidInput, match="does not say which device its layers run on"):
            Plan.from_json(wrong)
    less = replace(plan, gpu_memory=replace(plan.gpu_memory, working=1))
    with pytest.raises(InvalidInput, match="working bytes of Card, but its steps take"):
        check_runnable(less, planning.catalogue(plan.machine))


def test_several_gpus_take_no_plan_with_layers_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = znni.plan("tiny.yaml", (7, 20, 23), machine="there.yaml", device="cpu+gpu")
    here = replace(plan.machine, gpus=2 * plan.machine.gpus[:1])
    monkeypatch.setattr("znni.inference.plan_checks.detect_for", lambda *_: here)
    with pytest.raises(InvalidInput, match="has some on the host"):
        checked_plan(plan, plan.network, Choices(gpus=2))
