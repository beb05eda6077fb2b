"""Tests of several GPUs: the choice of GPUs, the plans for them, and their workers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from fakes import fake_gpu_catalogue, gpu, machine
from random_networks import chain

from planner.limits import memory_of_run
from planner.search import Search
from znni.calibration.overhead_figures import PROCESS_BYTES, run_overhead
from znni.core.errors import InvalidInput
from znni.core.plan_options import Choices
from znni.core.processors import DeviceChoice
from znni.core.shapes import Vec3
from znni.engine.workers import fleet
from znni.engine.workers.fleet import Member
from znni.inference import build_runner, gpu_choice
from znni.inference.devices import primitives_for
from znni.inference.gpu_choice import CONTEXT_BYTES, choose_gpus
from znni.machine.gpus import Missing
from znni.machine.machine import Machine
from znni.network.geometry import with_window
from znni.network.layers import Conv, Padding
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.plans.job_seconds import StageSeconds
from znni.plans.plan import Plan
from znni.plans.stored_values import Stored
from znni.plans.totals import PlanTime

GIB = 2**30
NETWORK = chain(("conv", 3), ("pool", 2), ("conv", 3), features=3)
OUTPUT = Vec3(40, 40, 48)


def with_gpus(*memory: int) -> Machine:
    return replace(machine(64 * GIB), gpus=tuple(map(gpu, memory)))


FOUR = with_gpus(8 * GIB, 4 * GIB, 6 * GIB, 9 * GIB)


@pytest.mark.parametrize(
    ("gpus", "numbers", "least"),
    [
        (1, [0], 8),
        ("1", [0], 8),
        (2, [0, 1], 4),
        ("all", [0, 1, 2, 3], 4),
        ("2,0", [2, 0], 6),
        ("0, 3", [0, 3], 8),
    ],
)
def test_those_that_are_chosen_come_first(gpus: int | str, numbers: list[int], least: int) -> None:
    found = choose_gpus(FOUR, Choices(gpus=gpus))
    used = found.gpus[: found.used_gpus]
    assert [card.number for card in used] == numbers
    taken = CONTEXT_BYTES if len(numbers) > 1 else 0
    assert {card.memory for card in used} == {least * GIB - taken}
    assert sorted(card.number for card in found.gpus) == [0, 1, 2, 3] or found == FOUR
    stated = choose_gpus(FOUR, Choices(gpus=gpus, gpu_memory="1GiB"))
    assert {card.memory for card in stated.gpus[: stated.used_gpus]} == {least * GIB}


def test_no_gpu_has_a_limit_where_none_is_used() -> None:
    with pytest.raises(InvalidInput, match=r"gpu_memory='1GiB' .* limits a GPU, and no layer"):
        choose_gpus(FOUR, Choices(device="cpu", gpu_memory="1GiB"))


def test_without_gpus_none_is_needed() -> None:
    assert choose_gpus(machine(), Choices()) == machine()
    with pytest.raises(InvalidInput, match=r"gpus='all' \(--gpus all\): there is no NVIDIA"):
        choose_gpus(machine(), Choices(gpus="all"))
    with pytest.raises(
        InvalidInput, match=r"gpu_memory='1GiB' .* limits a GPU, and there is no NVIDIA"
    ):
        choose_gpus(machine(), Choices(gpu_memory="1GiB"))
    with pytest.raises(
        InvalidInput, match=r"gpus=2 .*: there is no NVIDIA .*; without a GPU, leave it out"
    ):
        choose_gpus(machine(), Choices(gpus=2))


@pytest.mark.parametrize(
    ("device", "in_vain", "warned"),
    [("auto", True, True), ("auto", False, False), ("cpu", True, False)],
)
def test_a_warning_says_why_installed_libraries_use_no_gpu(
    device: DeviceChoice,
    in_vain: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        gpu_choice, "missing_for_gpu", lambda: Missing("the driver is old", in_vain)
    )
    gpu_choice._warn_of_gpu_libraries_in_vain.cache_clear()
    for _ in range(2):
        choose_gpus(machine(), Choices(device=device))
    gpu_choice._warn_of_gpu_libraries_in_vain.cache_clear()
    said = ["no GPU is used: the driver is old"] if warned else []
    assert [record.getMessage() for record in caplog.records] == said


@pytest.mark.parametrize(
    ("gpus", "device", "said"),
    [
        (5, "auto", r"gpus=5 \(--gpus 5\): there are 4 GPUs, numbered from 0; give gpus='all'"),
        ("0,4", "auto", r"gpus='0,4' \(--gpus 0,4\): there are 4 GPUs"),
        (0, "auto", "give one GPU or more, and each of them once"),
        ("1,1", "auto", "give one GPU or more, and each of them once"),
        ("both", "auto", r"give how many, all, or which, as gpus='0,2' \(--gpus 0,2\)"),
        ("1,", "auto", "give how many, all, or which"),
        (-1, "auto", "give how many, all, or which"),
        (2, "cpu", r"2 GPUs compute all layers, and device='cpu' .* has some on the host"),
        (2, "cpu+gpu", r"; give gpus=1 \(--gpus 1\), or device='gpu' \(--device gpu\)"),
    ],
)
def test_what_cannot_be_chosen(gpus: int | str, device: DeviceChoice, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        choose_gpus(FOUR, Choices(gpus=gpus, device=device))


def test_layers_that_cannot_be_divided() -> None:
    layer = Conv("layer", 1, 1, Vec3.of(3), "relu", padding=Padding(Vec3.of(1), Vec3.of(1)))
    exact = Network("exact", 1, (Node(layer, (INPUT,)),), "layer")
    windows = with_window(exact, Window(Vec3.of(8)))
    for network in (exact, windows):
        with pytest.raises(InvalidInput, match=r"on one device; give device='gpu' .* or dev"):
            primitives_for(network, {}, FOUR, "cpu+gpu")


def planned(gpus: int) -> Plan:
    there = choose_gpus(FOUR, Choices(gpus=gpus))
    primitives = {
        name: replace(found, device=there.gpus[0]) for name, found in fake_gpu_catalogue().items()
    }
    overhead = run_overhead(there)
    plan = Search(NETWORK, OUTPUT, there, primitives, overhead).fastest()[0]
    taken = memory_of_run(NETWORK, plan.patch, plan.parts, overhead)
    assert (plan.memory, plan.gpu_memory) == taken
    return plan


def test_what_several_take_of_the_host() -> None:
    one, three = planned(1), planned(3)
    same, _ = memory_of_run(NETWORK, one.patch, one.parts, run_overhead(three.machine))
    assert (one.workers, three.workers) == (1, 3)
    cuda = one.memory.process - PROCESS_BYTES
    assert same.process == one.memory.process + 3 * (PROCESS_BYTES + cuda)
    assert same.weights == 4 * one.memory.weights
    slots = 3 * 3 * 4 * (one.input_patch.volume + 3 * one.patch.volume)  # float32, both ways
    read = 2 * 4 * one.input_patch.volume  # read into slots: no float32 block beside them
    copy = 4 * 3 * one.patch.volume  # of the one block that is written at a time
    assert same.blocks == 3 * (one.memory.blocks - read - copy) + slots + copy


def test_patches_are_shared_out() -> None:
    plan = planned(1)
    patches = 1000
    alone, two = plan.time, replace(plan.time, workers=2)
    stages = alone.patch.by_stage()
    layers_bound = replace(alone, patch=replace(alone.patch, gpu_layers=1.0))
    assert replace(layers_bound, workers=4).total(patches) < 0.26 * layers_bound.total(patches)
    busy, alone_busy = (time.for_job(patches).busy.by_stage() for time in (two, alone))
    for shared in ("reading", "writing"):  # one process works for all
        bound = replace(alone, patch=replace(alone.patch, **{shared: 1.0}))
        assert replace(bound, workers=4).total(patches) == bound.total(patches)
        assert replace(bound, workers=4).pace.bottleneck == shared
        assert busy[shared] == alone_busy[shared] == pytest.approx(patches * stages[shared])
    assert busy["gpu_layers"] == alone_busy["gpu_layers"] / 2


def test_workers_take_patches_in_rounds() -> None:
    """A run takes as long as the worker with the most patches, if reading takes no time."""
    for workers, patches in product((1, 2, 3, 4), (1, 2, 3, 4, 5, 8, 13)):
        time = PlanTime(1.0, 2.0, StageSeconds(0.0, 0.0, 0.5, 4.0, 0.0), workers)
        most = max(len(range(worker, patches, workers)) for worker in range(workers))
        assert time.total(patches) == replace(time, workers=1).total(most)


def test_a_run_has_a_worker_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, made = planned(3), list[Any]()
    monkeypatch.setattr(fleet, "Fleet", lambda _plan, members, *_: made.extend(members))
    build_runner.prepare(plan, random_weights(NETWORK, 0), stored=Stored("uint8"))
    for number, member in enumerate(made):
        assert isinstance(member, Member)
        assert member.name == f"the worker of GPU {number}"
        assert member.environment == {"CUDA_VISIBLE_DEVICES": str(number)}
        (alone, _), options = member.prepare.args, member.prepare.keywords  # type: ignore[attr-defined]
        assert alone.workers == 1
        assert [card.number for card in alone.machine.gpus] == [number]
        assert alone.segments == plan.segments
        assert options == {"dtype": "uint8"}
    assert Plan.from_json(plan.to_json()) == plan
