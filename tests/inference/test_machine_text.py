"""The description of a machine names what its GPU lacks."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest
from command_line import refused, succeeds
from gpu_layers import H200
from memory_nodes import write_nodes

from znni.inference.machine_text import describe_machine
from znni.machine import numa, nvrtc
from znni.machine.cuda import cupy
from znni.machine.detect import detect_host
from znni.machine.machine import Machine


def described(capability: int, *, cudnn: bool = False) -> dict[str, str]:
    """Return the line of each family of primitives."""
    gpu = replace(H200, capability=capability, cudnn=cudnn)
    lines = describe_machine(Machine(detect_host().host, (gpu,), absent=True)).splitlines()
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


def test_gpus_with_the_same_primitives_are_listed_together() -> None:
    turing, small = replace(H200, capability=75), replace(H200, memory=H200.memory // 2)
    gpus = (H200, small, turing, H200)
    lines = describe_machine(Machine(detect_host().host, gpus, absent=True)).splitlines()[1:]
    listed = [line.startswith("GPU ") for line in lines]
    lists = len(lines) - 4
    assert [sum(group) for alone, group in groupby(listed) if alone] == [2, 1, 1]
    assert lists == 3 * len(described(90))
    assert lines[0] != lines[1], "each has its own memory"


def test_nodes_of_memory_are_listed_if_there_are_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1, 2}, raising=False)
    host = Machine(detect_host().host)
    monkeypatch.setattr(numa, "NODES", write_nodes(tmp_path / "one", "0-2"))
    assert "memory nodes" not in describe_machine(host)
    monkeypatch.setattr(numa, "NODES", write_nodes(tmp_path / "two", "0-1", "2"))
    (line,) = (it for it in succeeds("info").splitlines() if it.startswith("memory"))
    said = "memory nodes  2 cores with 1.00 GiB, 1 core with 1.00 GiB; --cluster local:2 computes"
    assert line.startswith(said)
    assert "memory nodes" not in describe_machine(replace(host, absent=True))


@pytest.mark.skipif(find_spec("cupy") is None, reason="needs CuPy")
def test_without_a_compiler_all_primitives_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file")

    nvrtc.compiler.cache_clear()
    monkeypatch.setattr(cupy().cuda.nvrtc, "getVersion", fails)
    *_, gpu, missing = describe_machine(Machine(detect_host().host, (H200,))).splitlines()
    assert H200.name in gpu
    said = "all primitives            missing: a GPU needs CUDA's compiler NVRTC (libnvrtc.so.13: "
    assert missing.strip().startswith(said)
    assert "pip install 'znni[gpu]'" in missing
    assert "missing" not in described(90)["gpu_direct"]


def test_info_without_a_file_describes_this_machine() -> None:
    assert succeeds("info").startswith("processor ")


def test_info_describes_a_machine_of_a_file() -> None:
    machines = Path(__file__).parents[2] / "machines"
    card = machines / "titanx-e7.yaml"
    families = dict(
        line.split(maxsplit=1) for line in succeeds("info", "--machine", card).splitlines()
    )
    assert (
        families["gpu_arranged"]
        == families["gpu_fft_tiled"]
        == ("missing: needs compute capability 8.0 (Ampere) or later")
    )
    assert families["gpu_cudnn"] == "gpu_cudnn_float32, gpu_cudnn_float32_workspace"
    none = succeeds("info", "--machine", machines / "laptop.yaml")
    assert "none: the machine described has no GPU" in none
    assert "two things to describe" in refused("info", "n337", "--machine", card)
    assert "line 4: unknown key 'host' in the network; this is a machine file" in refused(
        "info", machines / "rtx4090.yaml"
    )
