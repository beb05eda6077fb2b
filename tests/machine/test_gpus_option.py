"""GPUs are chosen before any is looked at."""

from __future__ import annotations

import pytest

from znni.core.processors import DeviceChoice
from znni.machine.gpus_option import seeing_only, several_named


@pytest.mark.parametrize(
    ("gpus", "device", "numbers"),
    [
        (2, "auto", [0, 1]),
        ("2,0", "gpu", [2, 0]),
        (1, "gpu", []),
        ("3", "gpu", [0, 1, 2]),
        ("all", "gpu", []),
        (2, "cpu", []),
        (3000, "gpu", []),
    ],
)
def test_several_gpus_are_known_before_they_are_looked_at(
    gpus: int | str, device: DeviceChoice, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("znni.machine.gpus_option.has_driver", lambda: True)
    assert several_named(device, gpus) == numbers
    monkeypatch.setattr("znni.machine.gpus_option.has_driver", lambda: False)
    assert several_named(device, gpus) == []


@pytest.mark.parametrize(
    ("visible", "gpus", "numbers"),
    [("4,5", 2, [0, 1]), ("4,5", 3, []), ("4,5", "0,2", []), ("", 2, [])],
)
def test_nothing_starts_on_gpus_that_are_not_visible(
    visible: str, gpus: int | str, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.machine.gpus_option.has_driver", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert several_named("gpu", gpus) == numbers


def test_a_worker_sees_its_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert seeing_only(2) == {"CUDA_VISIBLE_DEVICES": "2"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-8f,7")
    assert seeing_only(2) == {"CUDA_VISIBLE_DEVICES": "7"}
