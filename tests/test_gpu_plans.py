"""Plans for a GPU: their limits, how the device is chosen, and what is said of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import refused, succeeds, write_case
from fakes import fake_catalogue, fake_gpu_catalogue, gpu, machine

import znni
from planner.exhaustive import Search, fastest_plan
from planner.overhead import Overhead
from znni import plan_of_run, planning
from znni.device_choice import primitives_for
from znni.engine import device_recombine
from znni.engine.checks import check_runnable
from znni.engine.recombine import place
from znni.engine.tiles import make_job
from znni.errors import DoesNotFit, InvalidInput, RunFailed
from znni.gpus import Gpu
from znni.machine import Device, Machine, detect_machine, limited
from znni.network import Conv, Network, Pool
from znni.options import ANYTHING, AS_COMPUTED, Choices, Stored
from znni.plan_file import load_plan
from znni.plans import Plan
from znni.shapes import Vec3, offsets
from znni.smaller_plan import smaller_plan

NETWORK = Network(
    "net",
    1,
    (
        Conv("conv1", 1, 2, Vec3(3, 3, 3), "relu"),
        Pool("pool1", Vec3(2, 2, 2)),
        Conv("conv2", 2, 1, Vec3(3, 3, 3), "relu"),
    ),
)
OUTPUT = Vec3(40, 40, 48)
ON_HOST = Overhead(1000, 1, 2)
ON_GPU = Overhead(1000, 1, 2, cuda=500, gpu=300, gpu_value_in=4, gpu_voxel_out=2)
THERE = """\
host: {name: there, memory: 40GiB, threads: 3, flops: 300 Gflop/s, bandwidth: 30 GB/s}
gpus:
  - &card {name: Card, memory: 12GiB, flops: 6 Tflop/s, bandwidth: 300 GB/s, capability: 5.2}
  - *card
"""
PLAN = ("plan", "--net", "tiny.yaml", "--volume", "7,20,23", "--machine", "there.yaml")
THERE_ON_GPU = (*PLAN, "--device", "gpu")


def with_gpu(memory: int, ram: int = 2**34) -> Machine:
    return replace(machine(ram), gpus=(gpu(memory), gpu(memory)))


def on_gpu(memory: int, ram: int = 2**34) -> Plan:
    return fastest_plan(NETWORK, OUTPUT, with_gpu(memory, ram), fake_gpu_catalogue(), ON_GPU)


@pytest.mark.parametrize("memory", [200_000, 400_000, 10**7])
def test_the_gpu_limits_the_layers_as_the_host_would(memory: int) -> None:
    """What is beside them taken off, the fastest plan is the same."""
    plan = on_gpu(memory)
    assert plan.gpu_memory is not None
    beside = plan.gpu_memory.total - plan.gpu_memory.working - plan.gpu_memory.resident
    left = memory - beside + ON_HOST.of_host(plan.network, plan.patch, "cpu").total
    catalogue = {
        name: replace(primitive, device=machine().host)
        for name, primitive in fake_gpu_catalogue().items()
    }
    search = Search(NETWORK, OUTPUT, machine(left), catalogue, ON_HOST)
    same = search.fastest_for(plan.patch)
    assert same is not None
    assert [step.primitive for step in same.steps] == [step.primitive for step in plan.steps]
    assert same.memory.working == plan.gpu_memory.working
    assert plan.gpu_memory.total <= memory


def test_memory_is_told_of_both() -> None:
    plan = on_gpu(10**7)
    voxels_in, voxels_out = plan.input_patch.volume, plan.patch.volume
    assert plan.gpu_memory is not None
    assert plan.device == "gpu"
    assert plan.gpu == plan.last_device == gpu(10**7)
    assert plan.gpu_memory.process == 300
    assert plan.gpu_memory.blocks == 4 * voxels_in + 2 * voxels_out
    assert plan.memory.process == 1500
    assert plan.memory.blocks == (1 + 4) * voxels_in + 2 * voxels_out  # one goes to the GPU
    assert plan.memory.working == plan.memory.resident == 0
    assert {segment.device for segment in plan.segments} == {"gpu"}
    assert Plan.from_json(plan.to_json()) == plan


def test_what_does_not_fit_names_the_device_and_its_option() -> None:
    with pytest.raises(DoesNotFit, match=r"on the gpu, .*; give gpu_memory=.*--gpu-memory") as gpu_:
        on_gpu(1000)
    assert gpu_.value.device == "gpu"
    assert on_gpu(gpu_.value.needed).device_memory.total == gpu_.value.needed
    with pytest.raises(DoesNotFit):
        on_gpu(gpu_.value.needed - 1)
    with pytest.raises(DoesNotFit, match=r"on the cpu, .*; give ram=") as host:
        on_gpu(10**7, ram=1600)
    assert on_gpu(10**7, ram=host.value.needed).memory.total <= host.value.needed


def test_the_primitives_are_those_of_the_devices_that_are_wanted() -> None:
    both = fake_catalogue() | fake_gpu_catalogue()
    there = with_gpu(10**7)
    assert primitives_for(NETWORK, both, there, "auto") == both
    assert primitives_for(NETWORK, both, there, "cpu+gpu") == both
    assert primitives_for(NETWORK, both, there, "cpu") == fake_catalogue()
    assert primitives_for(NETWORK, both, there, "gpu") == fake_gpu_catalogue()
    without_conv = {name: found for name, found in both.items() if name != "gpu_conv"}
    with pytest.raises(InvalidInput, match="no GPU primitive of this accuracy does layer conv1"):
        primitives_for(NETWORK, without_conv, there, "gpu")
    for device in ("gpu", "cpu+gpu"):
        asked = rf"device='{re.escape(device)}' \(--device .*\): .*; give device='cpu'"
        with pytest.raises(InvalidInput, match=asked):
            primitives_for(NETWORK, fake_catalogue(), machine(), device)


def test_a_gpu_whose_primitives_cannot_do_the_network_is_left_alone() -> None:
    """Alone they do each layer, in some shapes; together none that the patches need."""
    few = {
        name: replace(
            primitive,
            shapes=lambda layer, shape, of=primitive.shapes: (
                of(layer, shape) if shape.n == 1 else None
            ),
        )
        for name, primitive in fake_gpu_catalogue().items()
        if name != "gpu_pool"
    }
    search = Search(NETWORK, OUTPUT, with_gpu(10**7), few, ON_GPU, division="none")
    with pytest.raises(InvalidInput, match="no primitives compute network net in patches of"):
        search.smallest()
    both = few | fake_catalogue()
    search = Search(NETWORK, OUTPUT, with_gpu(10**7), both, ON_GPU, division="none")
    assert "cpu" in search.fastest()[0].device


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_case(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text(THERE)
    both = fake_catalogue() | fake_gpu_catalogue()

    def of(machine: Machine) -> dict[str, object]:
        return {
            name: replace(found, device=machine.host if found.device.kind == "cpu" else card)
            for name, found in both.items()
            for card in machine.gpus[:1] or [None]
            if found.device.kind == "cpu" or card
        }

    monkeypatch.setattr("znni.planning.catalogue", of)


@pytest.mark.usefixtures("there")
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


@pytest.mark.usefixtures("there")
def test_a_plan_for_a_gpu_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    succeeds(*THERE_ON_GPU, "--out", "plan.json")
    monkeypatch.setattr("znni.gpus.why_no_gpu", lambda: "CUDA finds no GPU")
    monkeypatch.setattr("znni.device_choice.why_no_gpu", lambda: "CUDA finds no GPU")
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--plan", "plan.json")
    assert "the plan runs layers on Card: CUDA finds no GPU; or plan again" in refused(*run)
    assert "runs the layers on the GPU, not the CPU; give device='gpu'" in refused(
        *run, "--device", "cpu"
    )


@pytest.mark.usefixtures("there")
def test_a_plan_for_a_gpu_keeps_to_its_memory_here(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = znni.plan("tiny.yaml", (7, 20, 23), machine="there.yaml", threads=1, device="gpu")
    found = replace(detect_machine(threads=1), gpus=(gpu(2**33),))
    monkeypatch.setattr(
        "znni.planning.detect_for",
        lambda _device, ram, threads, gpu_memory: limited(found, ram, threads, gpu_memory),
    )
    checked = planning.checked_plan(plan, plan.network, stored=Stored("uint8"))
    assert checked.gpu.name == "fake GPU"
    assert checked.device_memory.working == plan.device_memory.working
    assert checked.device_memory.blocks < plan.device_memory.blocks
    with pytest.raises(InvalidInput, match=r"of the GPU and .* are allowed; give gpu_memory="):
        planning.checked_plan(plan, plan.network, Choices(gpu_memory=plan.device_memory.total - 1))


@pytest.mark.parametrize("free", [2**33, 500_000])
def test_a_gpu_that_is_short_of_memory_gets_a_smaller_plan(
    monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    plan = on_gpu(10**7)
    monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_gpu_catalogue())
    monkeypatch.setattr("znni.planning.run_overhead", lambda *_: ON_GPU)
    monkeypatch.setattr(
        "znni.smaller_plan.detect_for",
        lambda _device, ram=None, threads=None, gpu_memory=None: limited(
            with_gpu(free), ram, threads, gpu_memory
        ),
    )
    job = make_job(NETWORK, OUTPUT + NETWORK.field_of_view - 1, "valid", "reflect", None)
    smaller = smaller_plan(plan, "gpu", job, ANYTHING, AS_COMPUTED)
    taken = plan.memory_on("gpu")
    share = taken.process + 3 * (taken.total - taken.process) // 4
    assert smaller.memory_on("gpu").total <= min(share, free)
    assert smaller.memory.total <= plan.machine.host.memory
    least = replace(smaller, gpu_memory=replace(taken, working=0, resident=0, blocks=0))
    with pytest.raises(RunFailed, match=r"memory of the GPU ran out .*give device='cpu'"):
        smaller_plan(least, "gpu", job, ANYTHING, AS_COMPUTED)


@pytest.mark.usefixtures("there")
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
    on_host, on_gpu = plan.sides
    assert on_host.output_shape == on_gpu.input_shape
    assert plan.memory.working == on_host.working_peak()[0] >= on_gpu.input_shape.nbytes
    assert plan.gpu_memory is not None
    assert plan.gpu_memory.working == on_gpu.working_peak()[0]
    blocks = plan.memory.blocks
    alone = znni.plan("tiny.yaml", (7, 20, 23), machine="there.yaml", device="cpu").memory.blocks
    assert blocks == alone + on_gpu.input_shape.nbytes  # as one is made, another is taken
    assert "device='cpu+gpu' (--device cpu+gpu): " in refused(*PLAN[:5], "--device", "cpu+gpu")
    assert "gpu_conv" in succeeds(*PLAN, "--device", "cpu+gpu", "--explain")
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--plan", "plan.json", "--device", "gpu")
    assert "runs the layers on the CPU+GPU, not the GPU; give device='cpu+gpu'" in refused(*run)


@pytest.mark.usefixtures("there")
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
    with pytest.raises(InvalidInput, match="working bytes of Card, and its steps take"):
        check_runnable(less, planning.catalogue(plan.machine))


@pytest.mark.parametrize(("held", "said"), [(0, True), (900, False)])
def test_a_plan_beyond_what_is_free_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, held: int, said: bool
) -> None:
    monkeypatch.setattr(plan_of_run, "detect_gpus", lambda: [Gpu("there", 2**20, 1e12, 1e11, 90)])
    monkeypatch.setattr(plan_of_run, "device_peak", lambda: held)
    gpu = Device("gpu", "there", 2**20, 1, 1e12, 1e11)
    plan_of_run._warn_beyond_free(2**20 + 900, [gpu])
    assert ("1 MiB are free" in caplog.text and "give gpu_memory='0MiB'" in caplog.text) == said


@pytest.mark.usefixtures("there")
def test_several_gpus_take_no_plan_with_layers_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = znni.plan("tiny.yaml", (7, 20, 23), machine="there.yaml", device="cpu+gpu")
    here = replace(plan.machine, gpus=2 * plan.machine.gpus[:1])
    monkeypatch.setattr(planning, "detect_for", lambda *_: here)
    with pytest.raises(InvalidInput, match="has some on the host"):
        planning.checked_plan(plan, plan.network, Choices(gpus=2))


def test_fragments_start_where_the_host_places_them() -> None:
    patch, stride = Vec3(4, 6, 8), Vec3(2, 3, 4)
    at = tuple(offsets(stride))
    fragments = np.arange(len(at) * 3 * 8, dtype=np.float32).reshape(len(at), 3, 2, 2, 2)
    dense = np.zeros((3, *patch), np.float32)
    place(fragments, at, stride, dense)
    firsts = device_recombine.starts(at, patch)
    np.testing.assert_array_equal(dense.reshape(3, -1)[:, firsts], fragments[:, :, 0, 0, 0].T)
