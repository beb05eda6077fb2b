"""The description of a machine names what its GPU lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from command_line import succeeds
from gpu_layers import H200

from znni.inference.machine_text import describe_machine
from znni.machine.detect import detect_host
from znni.machine.machine import Machine


def described(capability: int, *, cudnn: bool = False) -> dict[str, str]:
    """Return the line of each family of primitives."""
    gpu = replace(H200, capability=capability, cudnn=cudnn)
    lines = describe_machine(Machine(detect_host().host, (gpu,))).splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_gpus_from_ampere_on_have_all_primitives(capability: int) -> None:
    families = described(capability, cudnn=True)
    assert not any("missing" in names for names in families.values())
    assert "gpu_direct_tensor_float16" in families["gpu_direct_tensor"]
    assert "gpu_fft_tiled_24_float16" in families["gpu_fft_tiled"]


def test_what_is_missing_has_a_reason() -> None:
    turing = described(75)
    assert turing["gpu_fft_tiled"] == "missing: needs compute capability 8.0 (Ampere) or later"
    assert "gpu_max_pooling_fragments" in turing["gpu_max_pooling"]
    assert "pip install" in turing["gpu_cudnn"]


def test_info_without_a_file_describes_this_machine() -> None:
    assert succeeds("info").startswith("processor ")
