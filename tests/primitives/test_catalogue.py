"""The catalogue finds primitives when they are looked up, and imports no others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from znni.core.discovery import member_names
from znni.machine.machine import Device, Machine
from znni.plans.primitive import Among, LazyCatalogue, on_device, without_gpu
from znni.primitives.catalogue import catalogue

HOST = Device("cpu", "host", 2**34, 4, 1e11, 1e10, bfloat16=True)
GPU = Device("gpu", "gpu", 2**35, 1, 6e13, 4e12, capability=90, cudnn=True)
BOTH = Machine(HOST, (GPU,))
NAMES = sorted(name for name in catalogue(BOTH) if not name.startswith("host_ram"))


def test_it_is_complete_and_in_order() -> None:
    """What was looked up before does not change the order, which decides between equals."""
    late = catalogue(BOTH)
    last = list(catalogue(BOTH))[-1]
    assert late[last].name == last
    assert list(late) == list(catalogue(BOTH))
    assert all(late[name] == found for name, found in catalogue(BOTH).items())
    assert len(late) == len(set(late))


@pytest.mark.parametrize("name", NAMES)
def test_one_module_is_asked_for_a_primitive(name: str) -> None:
    late = catalogue(BOTH)
    assert late[name].name == name
    asked = [it for it in late._members if "primitives" in it.__dict__]  # type: ignore[attr-defined]
    assert len(asked) == 1
    assert "all_found" not in late.__dict__


def test_an_unknown_name_is_not_found() -> None:
    assert "gpu_fft_tiled_25" not in catalogue(BOTH)
    assert catalogue(BOTH).get("fft_tiled") is None


def test_a_lookup_imports_no_other_primitives() -> None:
    code = (
        "import sys; from znni.machine.detect import detect_host; from znni.machine.machine import "
        "Machine; from znni.primitives.catalogue import catalogue; "
        "catalogue(Machine(detect_host().host))['max_pooling']; "
        "print(*(name for name in sys.modules if name.startswith('znni.primitives.cpu.')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    folders = {name.split(".")[3] for name in shown.stdout.split()} - {"common"}
    assert folders == {"max_pooling"}
    assert len(member_names("znni.primitives.cpu")) > 10


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_part_of_it_is_found_late_too(kind: str) -> None:
    part = on_device(catalogue(BOTH), kind)  # type: ignore[arg-type]
    whole = {name: it for name, it in catalogue(BOTH).items() if it.device.kind == kind}
    assert dict(part) == whole
    assert part.devices == ((HOST,) if kind == "cpu" else (GPU,))
    assert ("gpu_direct" in part) == (kind == "gpu")


def test_each_part_is_told_apart() -> None:
    parts: list[LazyCatalogue] = [
        catalogue(BOTH),
        catalogue(BOTH, models=True),
        catalogue(BOTH, "gpu"),
        on_device(catalogue(BOTH), "gpu"),
        on_device(catalogue(BOTH), "cpu"),
        without_gpu(catalogue(BOTH)),
        Among(catalogue(BOTH), lambda found: found.accuracy < 1, "accurate"),
        on_device(Among(catalogue(BOTH), lambda found: found.accuracy < 1, "accurate"), "gpu"),
    ]
    told = [part.cache_key for part in parts]
    assert len(set(told)) == len(parts)
    assert all(told)
    assert on_device(dict(catalogue(BOTH)), "gpu").cache_key is None


def test_a_check_is_made_when_all_are_found() -> None:
    checked = list[int]()
    part = on_device(catalogue(BOTH), "gpu", lambda found: checked.append(len(found)))
    assert part["gpu_direct"].name == "gpu_direct"
    assert not checked
    assert list(part)
    assert checked == [len(part)]
