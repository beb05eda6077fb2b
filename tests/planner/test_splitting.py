"""Plans split convolutions of upsampled values where that is faster, for a GPU that is not here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from paths import MACHINES

from bench.unet_networks import UNETS
from planner.cost_model import BUILT_IN
from planner.search import Search
from planner.splitting import split_where_faster
from znni.core.errors import InvalidInput
from znni.core.option_types import Accuracy
from znni.core.plan_options import Choices
from znni.core.processors import DeviceChoice
from znni.core.shapes import Vec3
from znni.inference import text_cache
from znni.inference.plan_cache import fastest_cached_or_found
from znni.inference.plan_checks import checked_plan
from znni.inference.planning import search
from znni.network.geometry import over, with_window
from znni.network.layers import PackedLayer, SummedConv, on_float32
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.window import Window
from znni.plans.plan import Plan

SIZE = Vec3(192, 192, 192)
DECODERS = ["conv13", "conv17", "conv21"]

# A convolution of upsampled values, and of those of a skip, with a norm after it.
NORMED = """\
name: normed
layers:
  - name: skip
    conv: {features: SKIP, kernel: 3, padding: same, activation: relu}
  - pool: {window: 2, stride: 2}
  - conv: {features: 64, kernel: 3, padding: same, activation: relu}
  - upsample: {factor: 2}
  - concat: {}
    from: [skip, upsample1]
  - name: decoder
    conv: {features: MADE, kernel: 3, padding: same}
  - instance_norm: {activation: relu}
  - conv: {features: 2, kernel: 1}
"""


def searched(
    network: Network,
    accuracy: Accuracy = "tf32",
    device: DeviceChoice = "gpu",
    of: str = "h100",
    size: Vec3 = SIZE,
) -> Search:
    return search(
        network, size, device=device, accuracy=accuracy, machine=MACHINES / f"{of}.yaml",
        costs="built-in", ram=2**34,
    )  # fmt: skip


def planned(found: Search) -> Plan:
    plan = found.fastest_for(found.output)
    assert plan is not None
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", ["tf32", "float32"])
@pytest.mark.parametrize("of", ["h100", "a100-80"])
def test_decoders_of_a_unet_are_split(accuracy: Accuracy, of: str) -> None:
    found = searched(UNETS["unet3d"](), accuracy, of=of)
    plan = planned(found)
    assert plan.network == found.network
    assert [it.conv.name for it in plan.network.split] == DECODERS
    steps = {step.gives: on_float32(step.operation) for step in plan.steps}
    assert all(isinstance(step.operation, PackedLayer) for step in plan.steps)
    for name in DECODERS:
        assert isinstance(steps[name], SummedConv)
        assert f"{name}.coarse" in steps
    assert Plan.from_json(plan.to_json()) == plan
    whole = searched(UNETS["unet3d"](), accuracy, of=of)
    whole.network = whole.given
    assert planned(whole).patch_seconds > 1.2 * plan.patch_seconds


def test_convolutions_stay_whole_on_processors() -> None:
    found = searched(UNETS["unet3d"](), device="cpu")
    assert found.network is found.given


@pytest.mark.slow
@pytest.mark.parametrize("gpu_memory", [2**34, 2**24])
def test_convolutions_are_split_only_if_the_gpu_computes(gpu_memory: int) -> None:
    found = searched(UNETS["unet3d"](), device="auto", size=SIZE * 4).within(gpu_memory, "gpu")
    assert found.on("cpu").network == found.given
    assert found.on("gpu").network.split
    plan = found.fastest()[0]
    assert plan.device == ("gpu" if gpu_memory > 2**30 else "cpu")
    assert (plan.network == found.given) == (plan.device == "cpu")
    smallest = [found.on(device).smallest() for device in ("cpu", "gpu")]
    assert found.smallest() in smallest


def test_convolutions_stay_whole_without_packed_values() -> None:
    found = searched(UNETS["unet3d"]())
    unpacked = [it for name, it in found.catalogue.items() if "packed" not in name]
    assert split_where_faster(found.given, unpacked, BUILT_IN) is found.given


@pytest.mark.slow
@pytest.mark.parametrize(("skip", "made", "splits"), [(32, 32, True), (32, 20, False)])
def test_convolutions_before_norms(skip: int, made: int, splits: bool) -> None:
    """Transposed convolutions to parts of groups are not packed."""
    text = NORMED.replace("SKIP", str(skip)).replace("MADE", str(made))
    network = with_window(network_from_text(text, "normed"), Window(SIZE, 0.0))
    found = searched(network)
    assert [it.conv.name for it in found.network.split] == ["decoder"] * splits
    whole = searched(network)
    whole.network = whole.given
    assert planned(found).patch_seconds <= planned(whole).patch_seconds


@pytest.mark.slow
def test_a_kept_plan_splits_the_same_convolutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(text_cache.FOLDER_VARIABLE, str(tmp_path))
    plan, kept = fastest_cached_or_found(searched(UNETS["unet3d"]()))
    assert not kept
    again = searched(UNETS["unet3d"]())
    found, kept = fastest_cached_or_found(again)
    assert kept
    assert found == plan
    assert found.network.split
    assert "network" not in again.__dict__, "a kept plan tells which are split"


def test_a_given_plan_is_for_the_network_whose_convolutions_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = searched(UNETS["unet3d"]())
    plan = planned(found)
    here = replace(found.machine, absent=False)
    monkeypatch.setattr("znni.inference.plan_checks.detect_for", lambda *_: here)
    monkeypatch.setattr("znni.inference.plan_checks.choose_gpus", lambda there, _: there)
    checked = checked_plan(Plan.from_json(plan.to_json()), found.given, Choices(accuracy="tf32"))
    assert checked.network == plan.network
    assert checked.memory.weights == plan.memory.weights == 4 * plan.network.held_parameters
    other = replace(found.given, name="other")
    with pytest.raises(InvalidInput, match="the plan is for network unet3d"):
        checked_plan(plan, other)


def test_networks_of_other_volumes_are_split_alike() -> None:
    found = searched(UNETS["unet3d"]())
    larger = over(replace(found.given, whole=None), Vec3(192, 192, 384))
    again = Search(
        larger, Vec3(192, 192, 384), found.machine, found.catalogue, found.overhead, device="gpu"
    )
    assert [it.conv.name for it in again.network.split] == DECODERS
