"""Plans for a GPU: the limits of its memory, and the primitives that they choose from."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil

import pytest
from fake_stages import FakeBlocks, host_blocks, overhead, stage_in
from fakes import fake_catalogue, fake_gpu_catalogue, gpu, machine
from random_networks import chain

from planner.overhead import LOCKED_BYTES_PER_TABLE_BYTE, Overhead
from planner.search import Search
from znni.calibration.overhead_figures import run_overhead
from znni.core.errors import InvalidInput, RunFailed
from znni.core.memory_errors import DoesNotFit
from znni.core.plan_options import ANYTHING
from znni.core.processors import DeviceChoice
from znni.core.shapes import Vec3
from znni.engine.backends.cuda import device as cuda
from znni.engine.stages.download import DownloadModel
from znni.engine.stages.layers import LayersModel
from znni.engine.stages.upload import UploadModel
from znni.engine.stages.write import WriteModel
from znni.engine.tiles import make_job
from znni.engine.workers.processes import SLOTS
from znni.inference import plan_choice as plan_of_run
from znni.inference.devices import primitives_for
from znni.inference.plan_choice import smaller_plan
from znni.inference.request import Requirements
from znni.machine.machine import Device, Machine, limited
from znni.network.geometry import extents_read, over
from znni.network.layers import Conv, Padding
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.node import INPUT, Node
from znni.plans.plan import Plan
from znni.plans.stored_values import AS_COMPUTED, Stored

NETWORK = chain(("conv", 3), ("pool", 2), ("conv", 3), features=1)
OUTPUT = Vec3(40, 40, 48)
ON_HOST = overhead(1000, 1, 2)
ON_GPU = Overhead(
    1000,
    (FakeBlocks(1), UploadModel(), LayersModel(), DownloadModel(), WriteModel()),
    cuda=500,
    gpu=300,
    stored=Stored("uint8"),
)


def with_gpu(memory: int, ram: int = 2**34) -> Machine:
    return replace(machine(ram), gpus=(gpu(memory), gpu(memory)))


def on_gpu(memory: int, ram: int = 2**34) -> Plan:
    return Search(NETWORK, OUTPUT, with_gpu(memory, ram), fake_gpu_catalogue(), ON_GPU).fastest()[0]


@pytest.mark.parametrize("memory", [200_000, 400_000, 10**7])
def test_the_gpu_limits_the_layers_as_the_host_would(memory: int) -> None:
    """Without the overhead of each device, the fastest plan is the same."""
    plan = on_gpu(memory)
    assert plan.gpu_memory is not None
    beside = plan.gpu_memory.total - plan.gpu_memory.working - plan.gpu_memory.resident
    left = (
        memory
        - beside
        + 1000
        + 4 * plan.network.parameters
        + host_blocks(ON_HOST, plan.network, plan.patch, "cpu")
    )
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
    locked = 2 * voxels_out
    assert plan.gpu_memory.process == 300 + ceil(locked / LOCKED_BYTES_PER_TABLE_BYTE)
    assert plan.gpu_memory.blocks == 4 * voxels_in + 2 * voxels_out
    assert plan.memory.process == 1500
    # One block goes to the GPU. Three outputs of a byte a value come back or are written.
    assert plan.memory.blocks == (1 + 4) * voxels_in + 3 * voxels_out
    assert plan.memory.working == plan.memory.resident == 0
    assert {segment.device for segment in plan.segments} == {"gpu"}
    assert Plan.from_json(plan.to_json()) == plan


def test_blocks_of_stored_values_take_their_bytes() -> None:
    """On the host, in slots, and over the link. Layers on the host still take float32."""
    shape, patch = Vec3(40, 40, 48), Vec3(20, 20, 20)
    values = extents_read(NETWORK, patch).volume
    here = replace(with_gpu(10**9), used_gpus=1)
    alone = {
        on_gpu: run_overhead(here, Stored("uint8", 1, scaled_on_gpu=on_gpu))
        for on_gpu in (False, True)
    }
    for device, saved in (("gpu", 2 * 3), ("cpu", 0), ("cpu+gpu", 0)):
        before, after = (
            host_blocks(alone[on_gpu], NETWORK, patch, device)  # type: ignore[arg-type]
            for on_gpu in (False, True)
        )
        assert before - after == saved * values
    several = replace(with_gpu(10**9), used_gpus=2)
    before, after = (
        host_blocks(
            run_overhead(several, Stored("uint8", 1, scaled_on_gpu=on_gpu)), NETWORK, patch, "gpu"
        )
        for on_gpu in (False, True)
    )
    assert before - after == 2 * 3 * SLOTS * values
    plans = {
        on_gpu: Search(NETWORK, shape, here, fake_gpu_catalogue(), alone[on_gpu]).fastest_for(patch)
        for on_gpu in (False, True)
    }
    by_host, by_gpu = plans[False], plans[True]
    assert by_host is not None
    assert by_gpu is not None
    assert (by_host.input_itemsize, by_gpu.input_itemsize) == (4, 1)
    assert by_host.computation != by_gpu.computation
    brought = stage_in(alone[True], UploadModel).ordinary * 3 * values
    saved_seconds = by_host.time.patch.transfer - by_gpu.time.patch.transfer
    assert saved_seconds == pytest.approx(brought)
    assert by_gpu.gpu_memory == by_host.gpu_memory


@pytest.mark.parametrize(("stride", "copies"), [(1, 3), (2, 4)])
def test_an_output_that_may_vary_with_its_phase_takes_one_copy_more(
    stride: int, copies: int
) -> None:
    """That of constant input is repeated on the host before it is copied there."""
    text = f"""\
name: net
in_features: 1
layers:
  - conv: {{features: 1, kernel: 3, stride: {stride}, padding: 1}}
  - conv_transpose: {{features: 1, kernel: {stride}, stride: {stride}}}
"""
    net, patch = over(network_from_text(text, "net.yaml"), Vec3.of(64)), Vec3.of(16)
    assert net.alignment == Vec3.of(stride)
    told = run_overhead(replace(with_gpu(10**9), used_gpus=1), Stored("uint8", 4))
    read = (4 + 4 + 2 * 4) * extents_read(net, patch).volume
    assert host_blocks(told, net, patch, "gpu") == read + copies * patch.volume


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
    assert (gpu_.value.process, gpu_.value.gpu_libraries) == (0, 0)
    assert (host.value.process, host.value.gpu_libraries) == (1500, 500)
    taken = "(the process and its libraries take 1 KiB of it, those of the GPU 500 B), and 2 KiB"
    assert taken in str(host.value)


def test_the_primitives_are_those_of_the_devices_that_are_wanted() -> None:
    both = fake_catalogue() | fake_gpu_catalogue()
    there = with_gpu(10**7)
    assert primitives_for(NETWORK, both, there, "auto") == both
    assert primitives_for(NETWORK, both, there, "cpu+gpu") == both
    assert primitives_for(NETWORK, both, there, "cpu") == fake_catalogue()
    assert primitives_for(NETWORK, both, there, "gpu") == fake_gpu_catalogue()
    without_conv = {name: found for name, found in both.items() if name != "gpu_conv"}
    refused = (
        r"no GPU primitive of this accuracy computes layer l0 \(conv \dx\dx\d, .*\); give device="
    )
    with pytest.raises(InvalidInput, match=refused):
        list(primitives_for(NETWORK, without_conv, there, "gpu"))
    for device in ("gpu", "cpu+gpu"):
        asked = rf"device='{re.escape(device)}' \(--device .*\): .*; give device='cpu'"
        with pytest.raises(InvalidInput, match=asked):
            primitives_for(NETWORK, fake_catalogue(), machine(), device)


def test_a_gpu_whose_primitives_cannot_do_the_network_is_left_alone() -> None:
    """Each layer has a primitive for some shapes, but not for the shapes that patches need."""
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
    with pytest.raises(InvalidInput, match="no primitives compute network test in patches of"):
        search.smallest()
    both = few | fake_catalogue()
    search = Search(NETWORK, OUTPUT, with_gpu(10**7), both, ON_GPU, division="none")
    assert "cpu" in search.fastest()[0].device


@pytest.mark.parametrize("free", [2**33, 500_000])
def test_a_gpu_that_is_short_of_memory_gets_a_smaller_plan(
    monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    plan = on_gpu(10**7)
    monkeypatch.setattr("znni.inference.planning.catalogue", lambda _machine: fake_gpu_catalogue())
    monkeypatch.setattr("znni.inference.planning.run_overhead", lambda *_: ON_GPU)
    monkeypatch.setattr(
        "znni.inference.plan_choice.detect_for",
        lambda _device, ram=None, threads=None, gpu_memory=None: limited(
            with_gpu(free), ram, threads, gpu_memory
        ),
    )
    job = make_job(NETWORK, OUTPUT + NETWORK.field_of_view - 1, "valid", "reflect", None)
    required = Requirements(NETWORK, job, ANYTHING, AS_COMPUTED)
    smaller = smaller_plan(plan, "gpu", required)
    taken = plan.memory_on("gpu")
    share = taken.process + 3 * (taken.total - taken.process) // 4
    assert smaller.memory_on("gpu").total <= min(share, free)
    assert smaller.memory.total <= plan.machine.host.memory
    least = replace(smaller, gpu_memory=replace(taken, working=0, resident=0, blocks=0))
    with pytest.raises(RunFailed, match=r"memory of the GPU ran out .*give device='cpu'"):
        smaller_plan(least, "gpu", required)


@pytest.mark.parametrize(("held", "said"), [(0, True), (900, False)])
def test_a_plan_beyond_what_is_free_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, held: int, said: bool
) -> None:
    gpu = Device("gpu", "there", 2**20, 1, 1e12, 1e11)
    monkeypatch.setattr(cuda, "detect_gpus", lambda: [gpu])
    backend = replace(cuda.BACKEND, peak=lambda: held)
    monkeypatch.setattr(plan_of_run, "backend_of", lambda _gpu: backend)
    plan_of_run._warn_beyond_free(2**20 + 900, [gpu])
    assert ("1 MiB are free" in caplog.text and "give gpu_memory='0MiB'" in caplog.text) == said


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 20])
@pytest.mark.parametrize("memory", [20_000, 100_000, 400_000])
def test_auto_is_no_slower_than_one_device_if_prices_run_out(
    monkeypatch: pytest.MonkeyPatch, most: int, memory: int
) -> None:
    monkeypatch.setattr("planner.search.MOST_PRICES", most)
    both, output = fake_catalogue() | fake_gpu_catalogue(), Vec3.of(200)

    def seconds(device: DeviceChoice) -> float:
        space = Search(NETWORK, output, with_gpu(memory), both, ON_GPU, device=device)
        return space.fastest()[0].seconds

    assert seconds("auto") <= min(seconds("cpu"), seconds("gpu"))


def test_tables_of_blocks_in_locked_memory_are_told() -> None:
    """Blocks of a tiled network are locked, unless other processes compute them."""
    layer = Conv("layer", 1, 1, Vec3.of(3), "relu", padding=Padding(Vec3.of(1), Vec3.of(1)))
    exact = over(Network("exact", 1, (Node(layer, (INPUT,)),), "layer"), Vec3.of(100))
    patch = Vec3.of(64)
    told = []
    for workers in (1, 2):
        beside = Overhead(0, (UploadModel(), DownloadModel()), workers=workers)
        run, each = beside.setting(exact, ("gpu",)), beside.counts(exact, patch)
        told.append(beside.of_gpu(run, each).process)
    blocks = 2 * 4 * extents_read(exact, patch).volume
    assert told[0] - told[1] == pytest.approx(blocks / LOCKED_BYTES_PER_TABLE_BYTE, abs=1)
