"""The pruned Fourier convolution's sizes, memory and kernels, and its order of transforms."""

from __future__ import annotations

import ctypes
import gc
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from gpu_layers import DEVICE, needs_compiler
from kernel_resources import resource_usage
from layers import random_input, random_weights

from bench import reference
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.machine.cuda import LibraryFailed
from znni.network.layers import Conv
from znni.primitives.gpu.fft_pruned import cufft
from znni.primitives.gpu.fft_pruned.launch import SIDE, source, transpose_grid
from znni.primitives.gpu.fft_pruned.primitive import GpuFftPruned
from znni.primitives.gpu.fft_pruned.work import WORK_BYTES, PrunedWork, Spectrum, good_size


@pytest.mark.parametrize(
    ("extent", "good"), [(1, 1), (11, 12), (13, 14), (97, 98), (121, 125), (223, 224), (251, 252)]
)
def test_good_sizes_have_small_prime_factors(extent: int, good: int) -> None:
    assert good_size(extent) == good


@pytest.mark.parametrize("size", [Vec3(64, 40, 50), Vec3(9, 4096, 4096), Vec3(4096, 9, 4096)])
def test_transpositions_of_huge_thin_volumes_are_within_the_limits_of_a_grid(size: Vec3) -> None:
    plane = Spectrum.of(size).plane
    for batch, columns, pitch in ((80 * size.z, 16, plane), (80, plane, size.z), (1, 1, plane)):
        tiles, parts = transpose_grid(batch, columns, pitch)
        assert tiles * SIDE * SIDE >= columns * pitch
        assert tiles < 2**31
        assert parts <= 65535


def test_memory_is_what_was_published_less_what_is_pruned() -> None:
    """Published: max{S f (n + n~) + f n~, S (f + f') n~ + 2 f n~, ...} numbers of four bytes."""
    conv, shape = Conv("conv", 7, 11, Vec3(3, 5, 2), "relu"), Shape5(3, 7, 60, 63, 64)
    out = Shape5(3, 11, 58, 59, 63)
    spectra = 2 * Spectrum.of(shape.size).numbers
    assert spectra == 2 * (64 // 2 + 1) * 63 * 60
    needed = PrunedWork(shape, out, conv).amounts
    multiplying = needed.outputs + needed.inputs + needed.kernels + needed.kernel_columns
    published = shape.n * (shape.f + out.f) * spectra + 2 * shape.f * spectra
    assert 2 * multiplying <= published
    memory = GpuFftPruned(DEVICE).cost(conv, shape).memory
    assert (
        memory.workspace
        == 4
        * 2
        * max(
            multiplying,
            needed.outputs + needed.inputs + needed.image_columns,
            needed.outputs + needed.output_columns,
        )
        + WORK_BYTES
    )
    assert memory.working == shape.nbytes + out.nbytes + memory.workspace
    assert memory.resident == 4 * conv.parameters


def test_pruned_transforms_take_less_than_whole_ones() -> None:
    spectrum = Spectrum(Vec3(64, 64, 64))
    kernel, image = Vec3(3, 3, 3), Vec3(64, 64, 64)
    assert spectrum.flops(kernel) < spectrum.flops(image) / 2
    assert spectrum.bytes_moved(kernel) < spectrum.bytes_moved(image) / 2


def test_work_grows_with_the_batch_less_than_in_proportion() -> None:
    conv = Conv("conv", 8, 8, Vec3(5, 5, 5), "relu")
    one, four = (
        PrunedWork(Shape5(n, 8, 32, 32, 32), Shape5(n, 8, 28, 28, 28), conv) for n in (1, 4)
    )
    assert one.flops < four.flops < 4 * one.flops
    arrays = four.shape.nbytes + four.out.nbytes
    passes = [work.bytes_moved - arrays * work.shape.n // 4 for work in (one, four)]
    assert passes[0] < passes[1] < 4 * passes[0]


def test_the_order_of_transforms_is_a_convolution() -> None:
    """Repeat ``Forward``, the product and ``Inverse`` in NumPy, line by line."""
    conv, shape = Conv("conv", 2, 3, Vec3(2, 3, 4), "identity"), Shape5(1, 2, 7, 9, 11)
    weights, x = random_weights(conv), random_input(shape)
    size = Spectrum.of(shape.size).size
    expected = reference.convolution(x, conv, weights)

    def transformed(maps: np.ndarray) -> np.ndarray:
        lines = np.fft.rfft(maps.astype(np.float64), size.x, axis=-1)
        columns = np.fft.fft(lines.transpose(0, 1, 3, 2), size.y, axis=-1)
        flat = columns.reshape(*columns.shape[:2], -1).transpose(0, 2, 1)
        return np.asarray(np.fft.fft(flat, size.z, axis=-1))

    spectra = transformed(x[0])
    for found, kernel, bias in zip(expected[0], weights.weight, weights.bias, strict=True):
        total = (spectra * transformed(kernel).conj()).sum(axis=0)
        z, y, x_ = found.shape
        columns = np.fft.ifft(total, axis=-1)[:, :z].T.reshape(z, -1, size.y)
        lines = np.fft.ifft(columns, axis=-1)[:, :, :y].transpose(0, 2, 1)
        sums = np.fft.irfft(lines, size.x, axis=-1)[:, :, :x_]
        np.testing.assert_allclose(sums + bias, found, rtol=1e-9, atol=1e-9)


def test_more_images_than_a_launch_counts_are_declined() -> None:
    conv, primitive = Conv("conv", 1, 1, Vec3(2, 2, 2), "relu"), GpuFftPruned(DEVICE)
    assert primitive.out_shape(conv, Shape5(262_140, 1, 3, 3, 3))
    assert primitive.out_shape(conv, Shape5(262_141, 1, 3, 3, 3)) is None


class FakeCufft:
    """cuFFT's library, which notes the plans that are destroyed.

    Attributes:
        fails: the call that fails.
        destroyed: the handles.
    """

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.destroyed: list[int] = []

    def cufftCreate(self, handle: Any) -> int:  # noqa: N802 - the library's names
        handle._obj.value = 7
        return int(self.fails == "create")

    def cufftSetAutoAllocation(self, *_: object) -> int:  # noqa: N802
        return 0

    def cufftMakePlanMany64(self, *_: object) -> int:  # noqa: N802
        return int(self.fails == "make")

    def cufftDestroy(self, handle: ctypes.c_int) -> None:  # noqa: N802
        self.destroyed.append(handle.value)


def test_plans_of_cufft_that_were_created_are_destroyed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handle that cuFFT did not give may be that of another plan."""
    for fails, destroyed in (("", [7]), ("make", [7]), ("create", [])):
        library = FakeCufft(fails)
        monkeypatch.setattr(cufft, "_library", lambda library=library: library)
        with pytest.raises(LibraryFailed) if fails else nullcontext():
            cufft.Lines("forward", 8, 1, 64, 64)
        gc.collect()
        assert library.destroyed == destroyed


def test_a_missing_cufft_is_the_only_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise InvalidInput("a GPU needs cuFFT")

    monkeypatch.setattr(cufft, "_library", missing)
    with pytest.raises(InvalidInput, match="needs cuFFT"):
        cufft.Lines("forward", 8, 1, 64, 64)
    gc.collect()  # an error as a plan is forgotten would be raised here


@needs_compiler
def test_kernels_between_transforms_compile_without_spills() -> None:
    usage = resource_usage(source("tanh"))
    assert set(usage) == {"embed", "transpose", "multiply", "extract"}
    assert not any(kernel.spills for kernel in usage.values())
