"""Tests of the inferer for arrays in memory: any size and type, checked and planned for."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import VOLUME, voxels
from forks import forked
from tiny_network import close, expected, whole

import znni
import znni.inference.session
from znni.core.errors import InvalidInput
from znni.core.memory_errors import DoesNotFit
from znni.network.network import Network
from znni.network.weights import Weights

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


def test_padding_needs_a_border(network: Network) -> None:
    with pytest.raises(InvalidInput, match=r"pad is 'edge', and border='valid' sees nothing bey.*"):
        znni.Inferer(network, pad="edge")(voxels())


@pytest.mark.parametrize("name", ["ram", "gpu_memory"])
def test_an_inferer_asks_for_a_forgotten_unit_when_it_is_made(network: Network, name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name}=4 .*: 4 is 4 bytes; did you mean 4GiB\?"):
        znni.Inferer(network, **{name: 4})  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["gpu", "cpu+gpu"])
def test_an_inferer_for_a_gpu_needs_a_driver_when_it_is_made(
    monkeypatch: pytest.MonkeyPatch, network: Network, device: Any
) -> None:
    monkeypatch.setattr("znni.machine.gpus.has_driver", lambda: False)
    with pytest.raises(InvalidInput) as refused:
        znni.Inferer(network, device=device)
    assert f"device={device!r}" in str(refused.value)
    assert ": there is no NVIDIA driver; " in str(refused.value)
    assert str(refused.value).endswith("give device='cpu' (--device cpu)")


def test_an_inferer_is_made_without_a_start_of_cuda(
    monkeypatch: pytest.MonkeyPatch, network: Network
) -> None:
    monkeypatch.setattr("znni.machine.gpus.has_driver", lambda: True)
    monkeypatch.setattr("znni.machine.gpus.find_spec", lambda _name: object())
    monkeypatch.setattr("znni.machine.gpus.cupy", lambda: pytest.fail("CUDA was started"))
    znni.Inferer(network, device="gpu")


def test_an_inferer_takes_arrays_of_any_kind_and_size() -> None:
    inferer = znni.Inferer("tiny.yaml")
    for shape, dtype in (
        (VOLUME, "uint8"),
        (VOLUME, ">f4"),
        ((1, *VOLUME), "float64"),
        ((2, 6, 8), "int16"),
        ((9, 9, 30), "bool"),
        (VOLUME, "uint8"),
    ):
        volume = voxels(shape, dtype)
        before = volume.copy()
        found = inferer(volume)
        assert found.dtype == np.float32
        assert close(found, expected(volume))
        np.testing.assert_array_equal(volume, before)
    with h5py.File("volume.h5") as file:
        np.testing.assert_array_equal(inferer(file["raw"]), inferer(voxels()))
    turned = np.asfortranarray(voxels())[::-1, :, ::-1]
    assert close(inferer(turned), expected(turned))


def test_several_maps_are_refused_with_a_remedy_that_an_inferer_takes() -> None:
    two = np.stack([voxels(), voxels()])
    with pytest.raises(InvalidInput, match=r"2 maps .* takes 1; choose .*, such as array\[0\]; "):
        znni.Inferer("tiny.yaml")(two)


def test_an_inferer_prepares_a_size_once(
    monkeypatch: pytest.MonkeyPatch, network: Network, weights: Weights
) -> None:
    planned: list[Any] = []
    original = znni.inference.planning.fastest
    monkeypatch.setattr(
        znni.inference.planning, "fastest", lambda *a: planned.append(a) or original(*a)
    )
    inferer = znni.Inferer(network, weights)
    inferer(voxels())
    inferer(voxels())
    assert len(planned) == 1
    inferer(voxels((9, 20, 23)))
    assert len(planned) == 2
    inferer(voxels((9, 20, 23), "float64"))  # blocks of float64 take more memory
    assert len(planned) == 3


def counted_steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Return lists of the plans that inferers search for, and of those that they prepare."""
    seen: dict[str, list[Any]] = {"planned": [], "prepared": []}
    search, ready = znni.inference.planning.fastest, znni.inference.session.prepare
    monkeypatch.setattr(
        znni.inference.planning, "fastest", lambda *a: seen["planned"].append(a) or search(*a)
    )
    monkeypatch.setattr(
        znni.inference.session, "prepare", lambda *a: seen["prepared"].append(a[0]) or ready(*a)
    )
    return seen


def test_an_inferer_keeps_what_it_needs_for_several_sizes(
    monkeypatch: pytest.MonkeyPatch, network: Network, weights: Weights
) -> None:
    seen = counted_steps(monkeypatch)
    inferer = znni.Inferer(network, weights)
    shapes = (VOLUME, (9, 20, 23), (4, 10, 12))
    for _ in range(3):
        for shape in shapes:
            volume = voxels(shape)
            assert close(inferer(volume), expected(volume))
    assert {name: len(plans) for name, plans in seen.items()} == {"planned": 3, "prepared": 3}


def test_an_inferer_releases_what_was_used_longest_ago(
    monkeypatch: pytest.MonkeyPatch, network: Network, weights: Weights
) -> None:
    shapes = {"a": VOLUME, "b": (9, 20, 23), "c": (7, 18, 21)}
    totals, idle = {}, {}
    for name, shape in shapes.items():
        probe = znni.Inferer(network, weights)
        probe(voxels(shape))
        (plan,) = probe._session._plans.values()
        totals[name] = plan.memory.total
        idle[name] = plan.memory.total - plan.memory.process - plan.memory.weights
    assert min(idle.values()) > 0
    two_of_them = max(totals.values()) + max(idle.values())  # not one byte for a third
    seen = counted_steps(monkeypatch)
    inferer = znni.Inferer(network, weights, ram=two_of_them)
    for name, prepared in (("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4)):
        volume = voxels(shapes[name])
        assert close(inferer(volume), expected(volume))
        assert len(seen["prepared"]) == prepared, name
    assert len(seen["planned"]) == 3


@pytest.mark.parametrize("copied", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("used", [False, True])
def test_a_copy_is_made_ready_by_itself(used: bool, copied: Any) -> None:
    inferer = znni.Inferer("tiny.yaml", border="same", pad="edge", threads=1)
    if used:
        inferer(voxels())
    other = copied(inferer)
    np.testing.assert_array_equal(other(voxels()), inferer(voxels()))
    assert other._session is not inferer._session
    assert other._turn is not inferer._turn


def test_an_inferer_prepares_itself_again_in_a_fork() -> None:
    """The fork has no threads, and shares no workers with the first process."""
    inferer = znni.Inferer("tiny.yaml", threads=2)
    volume = voxels()
    found = inferer(volume)
    kept = inferer._session
    child = forked()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            same = (inferer(volume) == found).all()
            code = 0 if same and inferer._session is not kept else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert inferer._session is kept
    np.testing.assert_array_equal(inferer(volume), found)


def test_threads_of_a_fork_share_what_an_inferer_prepares_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each would have its own turns, and the memory would be for one of them."""
    inferer, volume, begin = znni.Inferer("tiny.yaml", threads=2), voxels(), znni.Inferer._begin
    begun = []

    def slowly(one: znni.Inferer) -> None:
        begun.append(one)
        sleep(0.2)
        begin(one)

    monkeypatch.setattr(znni.Inferer, "_begin", slowly)
    child = forked()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(inferer, [volume] * 2))
            code = 0 if len(begun) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_an_inferer_counts_its_output(network: Network, weights: Weights) -> None:
    output = 4 * 2 * 6 * 15 * 16
    with pytest.raises(DoesNotFit) as alone:
        znni.plan(network, VOLUME, ram=1024, input_itemsize=1)
    with pytest.raises(DoesNotFit) as refused:
        znni.Inferer(network, weights, ram=1024)(voxels())
    needed = refused.value.needed
    assert needed == alone.value.needed + output
    assert refused.value.__notes__ == ["11 KiB of that are for the output array"]
    with pytest.raises(DoesNotFit):
        znni.Inferer(network, weights, ram=needed - 1)(voxels())
    found = znni.Inferer(network, weights, ram=needed)(voxels())
    assert close(found, whole())


def test_an_inferer_checks_a_plan_for_what_it_is_called_with(
    monkeypatch: pytest.MonkeyPatch, network: Network, weights: Weights
) -> None:
    prepared: list[Any] = []
    original = znni.inference.session.prepare
    monkeypatch.setattr(
        znni.inference.session, "prepare", lambda *a: prepared.append(a) or original(*a)
    )
    plan = znni.plan(network, (4, 10, 12), input_itemsize=1)
    small, output = voxels((4, 10, 12)), 4 * 2 * 3 * 5 * 5
    inferer = znni.Inferer(network, weights, plan, ram=plan.memory.total + output)
    inferer(small)
    with pytest.raises(InvalidInput, match="11 KiB of it for the output array, and"):
        inferer(voxels())
    with pytest.raises(InvalidInput, match="are allowed"):
        inferer(small.astype("float64"))
    inferer(small)
    assert len(prepared) == 1
    with pytest.raises(InvalidInput, match="are allowed"):
        znni.Inferer(network, weights, plan, ram=plan.memory.total + output - 1)(small)


def test_an_inferer_with_a_plan_runs_it_on_any_size(network: Network, weights: Weights) -> None:
    plan = znni.plan(network, (4, 10, 12))
    inferer = znni.Inferer(network, weights, plan)
    for shape in (VOLUME, (4, 10, 12), (2, 6, 8)):
        volume = voxels(shape)
        assert close(inferer(volume), expected(volume))
    other = Network.chain("other", 1, network.layers, network.scaling)
    with pytest.raises(InvalidInput, match="the plan is for network tiny"):
        znni.Inferer(other, weights, plan)(voxels())


def test_an_inferer_pads(network: Network, weights: Weights) -> None:
    inferer = znni.Inferer(network, weights, border="same", pad="edge")
    found = inferer(voxels())
    assert found.shape == (2, *VOLUME)
    assert close(found[:, :6, 2:17, 3:19], whole())


def test_an_inferer_refuses(network: Network, weights: Weights) -> None:
    inferer = znni.Inferer(network, weights)
    for array, said in (
        (voxels((2, *VOLUME)), "2 maps"),
        (voxels((*VOLUME, 1)), r"or \(maps, z, y, x\) .*the maps: move it to the front"),
        (voxels((*VOLUME, 4)), r"the maps: move it to the front"),
        (voxels((*VOLUME, 5)), r"for several maps$"),
        (voxels((2, 2, 2)), "field of view"),
        (np.full(VOLUME, np.nan), "holds nan at voxel z=0, y=0, x=0"),
        (voxels().tolist(), "a list"),
        (voxels(dtype="complex64"), "complex64"),
    ):
        with pytest.raises(InvalidInput, match=said):
            inferer(array)
    assert close(inferer(voxels()), whole())
    with pytest.raises(InvalidInput, match=r"weights=znni\.random_weights\(network, 0\)"):
        znni.Inferer(Network.chain("none", 1, network.layers))
