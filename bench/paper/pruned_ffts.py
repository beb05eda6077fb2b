"""Pruned Fourier transforms of kernels, beside those of kernels padded with zeros (ZNNi, III)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Annotated

import numpy as np
import typer

from bench import session
from bench.paper.contests import contest
from bench.record import Row
from bench.rounds import Effort
from znni.core.processors import DeviceKind
from znni.core.shapes import Vec3
from znni.machine.arrays import empty_aligned
from znni.machine.cuda import cupy
from znni.machine.device_arena import DeviceArena
from znni.primitives.cpu.common.workers import workers
from znni.primitives.cpu.fft_tiled.kernel_transform import spectrum_shape, transform_kernels
from znni.primitives.cpu.fft_tiled.number_formats import FLOAT32
from znni.primitives.gpu.fft_pruned.launch import Forward, Kernels
from znni.primitives.gpu.fft_pruned.work import WORK_BYTES, Spectrum

# The gains of the paper, over kernels of several extents.
PUBLISHED: dict[DeviceKind, float] = {"cpu": 5.0, "gpu": 10.0}

PRUNED, PADDED = "pruned", "padded with zeros"


def pruned_ffts_command(
    kernel: session.Kernels = [3, 5, 7, 9],  # noqa: B006
    size: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Extent of the transform; repeatable. Default: 16 and 32."),
    ] = None,
    maps: Annotated[int, typer.Option(min=16, help="Kernels that are transformed.")] = 256,
    device: session.Device = "cpu",
    threads: session.Threads = None,
    repeats: session.Repeats = 5,
    budget: session.Budget = 2.0,
    out: session.Out = None,
) -> None:
    """Compare pruned transforms of kernels with padded ones."""
    machine, effort = session.machine_with(device, threads), Effort(repeats, budget)

    def measured() -> Iterator[list[Row]]:
        for taps, extent in product(kernel, size or (16, 32)):
            about: Row = {
                "figure": "ZNNi, III",
                "case": f"{maps} kernels of {taps}^3 to {extent}^3",
                "published_gain": PUBLISHED[device],
            }
            made = _on_cpu if device == "cpu" else _on_gpu
            contestants = made(taps, extent, maps, machine.host.threads)
            yield contest(about, contestants, effort, device, PADDED)

    session.report_all("evaluations", measured(), [], out)


def _on_cpu(taps: int, extent: int, maps: int, threads: int) -> dict[str, Callable[[], object]]:
    """Return both transforms on the CPU: as a tile's, and as SciPy pads and transforms."""
    from scipy import fft

    tile, pool = Vec3.of(extent), workers(threads)
    kernels = np.random.default_rng(0).standard_normal((16, maps // 16, *Vec3.of(taps)), np.float32)
    spectra = empty_aligned(spectrum_shape(tile, 16, maps // 16, FLOAT32), np.float32)
    return {
        PRUNED: lambda: transform_kernels(kernels, tile, spectra, FLOAT32, pool),
        PADDED: lambda: fft.rfftn(kernels, tile, axes=(2, 3, 4), workers=threads),
    }


def _on_gpu(taps: int, extent: int, maps: int, _threads: int) -> dict[str, Callable[[], object]]:
    """Return both transforms on a GPU, by the same lines of cuFFT."""
    cp, spectrum = cupy(), Spectrum(Vec3.of(extent))
    kernels = cp.random.default_rng(0).standard_normal((maps, taps, taps, taps), dtype="float32")
    padded = cp.zeros((maps, extent, extent, extent), cp.float32)
    padded[:, :taps, :taps, :taps] = kernels
    spectra = cp.empty(maps * spectrum.numbers, cp.complex64)
    work = cp.empty(WORK_BYTES, cp.uint8)
    steps = Kernels("identity")
    pruned = Forward(steps, spectrum, maps, Vec3.of(taps))
    whole = Forward(steps, spectrum, maps, Vec3.of(extent))
    arena = DeviceArena(2 * 8 * maps * spectrum.numbers)

    def run(forward: Forward, given: object) -> None:
        with arena.in_use():
            forward.run(given, spectra, work)

    return {PRUNED: lambda: run(pruned, kernels), PADDED: lambda: run(whole, padded)}
