"""``python -m bench chips``: the parts that need no GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_layers import AS_AMPERE, H200
from quick_benchmarks import QUICK

from bench import chips, session
from bench.ceilings import GpuCeilings
from bench.layers import layer
from bench.record import Row
from bench.table import table
from znni.core.shapes import Shape5, Vec3
from znni.machine.cuda import STAND_IN
from znni.machine.detect import detect_host
from znni.machine.machine import Machine
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR, FLOAT16, FLOAT16_PAIR
from znni.primitives.gpu.direct_tensor.primitive import GpuDirectTensor
from znni.primitives.gpu.fft_tiled.primitive import GpuFftTiled

CEILINGS = GpuCeilings("NVIDIA H200", flops=60e12, copy_bandwidth=4e12, matrix_flops=600e12)
CONV, SHAPE = layer(Vec3.of(3), 80, 80), Shape5.of(4, 80, Vec3.of(66))


def test_a_gpu_stands_for_an_older_one_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in ("8.6", None):
        if before:
            monkeypatch.setenv(STAND_IN, before)
        else:
            monkeypatch.delenv(STAND_IN)
        with chips.standing_for("8.0"):
            assert os.environ[STAND_IN] == "8.0"
            with chips.standing_for(None):
                assert STAND_IN not in os.environ
            assert os.environ[STAND_IN] == "8.0"
        assert os.environ.get(STAND_IN) == before


def test_shares_are_of_the_same_class_and_of_the_best_peer() -> None:
    def row(chip: str | None, accuracy: float, ns: float) -> Row:
        of_chip = {} if chip is None else {"chip": chip, "accuracy": accuracy}
        return of_chip | {"ns_per_voxel": ns}

    rows = [
        row(chips.OWN, 1e-5, 3.0), row("8.0", 1e-5, 4.0), row(chips.OWN, 1e-3, 1.0),
        row("8.0", 1e-3, 2.0) | {"pass": "multiply"}, row("8.0", 1e-3, 2.0),
        {"chip": "8.6", "skipped": "too little memory"}, row(None, 0, 6.0), row(None, 0, 8.0),
    ]  # fmt: skip
    exact, rounded = (chips.with_shares(rows)[i] for i in (1, 4))
    assert (exact["share_of_own"], exact["over_peer"]) == (0.75, 1.5)
    assert (rounded["share_of_own"], rounded["over_peer"]) == (0.5, 3)
    assert all("over_peer" not in chips.with_shares(rows)[i] for i in (3, 5, 6, 7))


@pytest.mark.parametrize("device", [H200, AS_AMPERE], ids=["hopper", "ampere"])
def test_passes_are_all_of_the_work(device: Any) -> None:
    for primitive in (
        GpuDirectTensor(device, FLOAT16),
        GpuDirectTensor(device, FLOAT16_PAIR),
        GpuFftTiled(device, FLOAT16, Vec3.of(24)),
        GpuFftTiled(device, BFLOAT16_PAIR, Vec3.of(24)),
    ):
        work = primitive.work(CONV, SHAPE)
        assert work is not None
        passes = work.passes
        assert sum(one.bytes_moved for one in passes.values()) == work.bytes_moved
        assert sum(one.flops for one in passes.values()) >= work.flops
        assert sum(one.on_tensor_cores for one in passes.values()) == 1


def test_the_fastest_of_each_class_is_measured_with_its_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FakeEvent:
        def record(self) -> None: ...

        def synchronize(self) -> None: ...

    class FakeRun:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, x: Any) -> None:
            self.lay_out(x)
            self.convolve(x)

        def lay_out(self, _: Any) -> None:
            self.calls += 1

        def convolve(self, _: Any) -> None:
            self.calls += 1

    def measured(primitives: list[Any], *_: object, **__: object) -> Iterator[Row]:
        (primitive,) = primitives
        yield {"name": primitive.name, "accuracy": primitive.accuracy} | {
            "seconds": 0.5, "ns_per_voxel": 2.0, "declared_flops": 1e12,
        }  # fmt: skip

    run = FakeRun()
    fake = SimpleNamespace(
        cuda=SimpleNamespace(Event=FakeEvent, get_elapsed_time=lambda *_: 1e3 * next(times)),
        random=SimpleNamespace(
            default_rng=lambda _: SimpleNamespace(standard_normal=lambda *_, **__: None)
        ),
    )
    times = iter([0.5] * 2 + [0.25, 0.125] * QUICK.repeats)
    monkeypatch.setattr(chips, "cupy", lambda: fake)
    monkeypatch.setattr(chips, "DeviceArena", lambda _: SimpleNamespace(in_use=nullcontext))
    monkeypatch.setattr(chips, "compare_on_gpu", measured)
    monkeypatch.setattr(chips, "release_gpu_memory", lambda: 0)
    monkeypatch.setattr(GpuDirectTensor, "build", lambda *_: run)
    machine = Machine(detect_host().host, (AS_AMPERE,))
    monkeypatch.setattr(session, "machine_with", lambda *_: machine)
    rows = list(
        chips.fastest_on(
            "8.0", CONV, SHAPE, ["gpu_direct_tensor_float16"], QUICK, CEILINGS, passes=True
        )
    )
    assert [row.get("pass") for row in rows] == [None, "lay_out", "convolve"]
    assert rows[0]["tflops_declared"] == 2
    assert [row["seconds"] for row in rows[1:]] == [0.25, 0.125]
    assert run.calls == 2 * (1 + QUICK.repeats)
    work = GpuDirectTensor(AS_AMPERE, FLOAT16).work(CONV, SHAPE)
    assert work is not None
    floor = work.passes["convolve"].flops / 600e12
    assert rows[2]["achieved"] == pytest.approx(floor / 0.125)
    assert (rows[1]["bound"], rows[2]["bound"]) == ("bytes", "flops")
    told = table("gpu-chips", rows)
    assert "convolve" in told
    assert "(bytes)" in told
    none = list(
        chips.fastest_on("8.0", CONV, SHAPE, ["gpu_lowered_tensor"], QUICK, CEILINGS, passes=True)
    )
    assert "computes conv1" in none[0]["skipped"]
