"""A backend for a third kind of device comes from one folder: found, planned, reported and run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import machine
from installed_packages import write_metadata
from numpy.typing import NDArray
from paths import SUPPORT

import znni
from znni.core.errors import InvalidInput
from znni.core.packages import BACKENDS
from znni.core.shapes import Vec3
from znni.engine.backends import registry
from znni.engine.backends.registry import DeviceBackend, backend_of
from znni.inference import planning
from znni.inference.machine_text import describe_machine
from znni.machine.detect import detect_machine
from znni.machine.machine import Device, Machine
from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.plans.plan import Plan
from znni.primitives.catalogue import catalogue

LAYERS = (Conv("one", 1, 3, Vec3(3, 3, 3), "relu"), Conv("two", 3, 2, Vec3(2, 3, 2), "identity"))
NETWORK = Network.chain("two convolutions", 1, LAYERS)
WEIGHTS = random_weights(NETWORK, 3)
SHAPE = (20, 25, 30)


@pytest.fixture
def third_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The third device, whose package is on Python's path."""
    monkeypatch.syspath_prepend(SUPPORT / "third_device")
    yield next(it for it in detect_machine().gpus if it.backend == "mirror")
    sys.modules.pop("mirror_device")
    registry._backend.cache_clear()


@pytest.fixture
def alone(third_device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The third device, on a machine that has no GPU."""
    monkeypatch.setattr("znni.machine.detect.detect_gpus", list)
    return third_device


def direct(here: Machine) -> dict[str, Any]:
    """Return the host's direct convolution alone."""
    return {"direct": catalogue(here, "cpu")["direct"]}


def run(volume: NDArray[Any], out: Path, **options: Any) -> znni.Report:
    """Run the network over a volume, to a file of NumPy's."""
    return znni.infer(volume, NETWORK, out, weights=WEIGHTS, costs="built-in", **options)


def test_a_plan_on_it_is_found_and_told(alone: Device) -> None:
    plan = znni.plan(NETWORK, SHAPE, device="gpu", costs="built-in", ram="3GiB")
    assert (plan.device, plan.gpu) == ("gpu", alone)
    assert {step.primitive for step in plan.steps} == {"mirror"}
    assert f"layers on {alone.name}, " in str(plan)
    assert plan.gpu_memory is not None
    own = backend_of(alone).device_bytes
    assert own <= plan.gpu_memory.process < 2 * own
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.input_itemsize == 4


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_it_is_chosen_if_it_is_faster() -> None:
    assert znni.plan(NETWORK, (400, 400, 400), costs="built-in").gpu_memory
    assert not znni.plan(NETWORK, SHAPE, costs="built-in", device="cpu").gpu_memory


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("options", [{}, {"labels": True}, {"dtype": "float16"}])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_it_computes_and_reports_what_the_host_computes(
    dtype: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = np.random.default_rng(0).integers(0, 200, SHAPE).astype(dtype)
    report = run(volume, tmp_path / "found.npy", device="gpu", **options)
    assert "a mirror of the host" in str(report.plan)
    monkeypatch.setattr(planning, "catalogue", direct)
    run(volume, tmp_path / "wanted.npy", device="cpu", **options)
    found, wanted = (tmp_path / f"{name}.npy" for name in ("found", "wanted"))
    assert found.read_bytes() == wanted.read_bytes()


@pytest.mark.usefixtures("alone")
def test_layers_on_the_host_hand_on_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = np.random.default_rng(1).random(SHAPE, np.float32)
    report = run(volume, tmp_path / "found.npy", device="cpu+gpu")
    assert report.plan.layers_on_host == 1
    monkeypatch.setattr(planning, "catalogue", direct)
    run(volume, tmp_path / "wanted.npy", device="cpu")
    found, wanted = (np.load(tmp_path / f"{name}.npy") for name in ("found", "wanted"))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_its_primitives_are_told(alone: Device) -> None:
    told = describe_machine(Machine(machine().host, (alone,)))
    assert "a mirror of the host" in told
    assert "mirror, of package mirror_device 1.0" in told
    assert "gpu_direct" not in told


def test_several_of_them_are_refused(alone: Device) -> None:
    two = replace(detect_machine(), gpus=(alone, alone))
    with pytest.raises(InvalidInput, match="a mirror of the host computes alone; give gpus=1"):
        znni.plan(NETWORK, SHAPE, machine=two, gpus=2)


def test_plans_for_znnis_own_devices_do_not_name_a_backend() -> None:
    plan = znni.plan(NETWORK, SHAPE, machine=machine(), device="cpu")
    assert '"backend"' not in plan.to_json()


def test_a_backend_that_nobody_brings_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"no backend nobody's .*; the backends are cuda, host;"):
        backend_of(replace(machine().host, backend="nobody's"))


def test_a_package_that_brings_something_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_metadata(tmp_path, "bringer", (BACKENDS, {"odd": "math:pi"}))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match=r"package bringer 1\.0.*3\.14.* is no DeviceBackend"):
        backend_of(replace(machine().host, backend="odd"))


def test_each_folder_is_a_backend() -> None:
    host = machine().host
    assert isinstance(backend_of(host), DeviceBackend)
    assert backend_of(replace(host, kind="gpu")).several
