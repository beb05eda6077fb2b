"""Pruned transforms on every backend: properties of a Fourier transform, and whole layers."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from counting_workers import CountingWorkers, JointWorkers
from numpy.typing import NDArray

from bench import reference
from znni.core.shapes import Shape5, Vec3
from znni.machine.arrays import peak_memory
from znni.machine.machine import Device
from znni.network.layers import Conv
from znni.network.weights import ConvWeights, Float32
from znni.plans.primitive import Primitive
from znni.primitives.cpu.common.simd import LANES
from znni.primitives.cpu.fft_whole_image import pruned_fft
from znni.primitives.cpu.fft_whole_image.blocking import Blocking, Scratch
from znni.primitives.cpu.fft_whole_image.fft_layer import FftLayer
from znni.primitives.cpu.fft_whole_image.fused_product import pack, unpack
from znni.primitives.cpu.fft_whole_image.primitive import primitives
from znni.primitives.cpu.fft_whole_image.pruned_fft import (
    Backend,
    FftwBackend,
    PrunedShape,
    PrunedTransforms,
    ScipyBackend,
)
from znni.primitives.cpu.fft_whole_image.transform_sizes import fast_size

CPU = Device("cpu", "test", 4 << 30, threads=2, flops=1e11, bandwidth=1e10)
PRIMITIVES = primitives(CPU)
BACKENDS = [FftwBackend(), ScipyBackend()]
SHAPES = [
    PrunedShape(Vec3(9, 14, 11), Vec3(7, 14, 8)),
    PrunedShape(Vec3(17, 19, 23), Vec3(16, 13, 1)),
    PrunedShape(Vec3(1, 2, 3), Vec3(1, 1, 2)),
    PrunedShape(Vec3(5, 64, 260), Vec3(3, 60, 251)),  # several slabs
]

every_primitive = pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda p: p.name)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: str(s.image))


@pytest.fixture(params=BACKENDS, ids=["fftw", "scipy"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Provide each source of one-dimensional transforms in turn, also for the layers."""
    chosen: Backend = request.param
    monkeypatch.setattr("znni.primitives.cpu.fft_whole_image.blocking.backend", lambda: chosen)
    return chosen


def random(*shape: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def forward(shape: PrunedShape, backend: Backend, image: Float32) -> NDArray[np.complex64]:
    """Return the whole pruned transform of one map (z, y, x): (N_z, N_y, columns)."""
    transforms = PrunedTransforms(shape, 1, shape.plane, backend)
    half = np.empty((shape.image.z, shape.plane), np.complex64)
    for slab in range(0, shape.image.z, shape.slab):
        planes = slice(slab, slab + shape.slab)
        transforms.forward_planes(image[planes], half[planes])
    transforms.columns[0, : len(half)] = half
    transforms.columns[0, len(half) :] = 0
    transforms.forward_columns()
    return transforms.columns.reshape(shape.size.z, shape.size.y, shape.columns).copy()


def inverse(shape: PrunedShape, backend: Backend, spectrum: NDArray[np.complex64]) -> Float32:
    """Return the wanted voxels (z, y, x) of a spectrum's unscaled inverse."""
    transforms = PrunedTransforms(shape, 1, shape.plane, backend)
    transforms.columns[0] = spectrum.reshape(shape.size.z, -1)
    transforms.inverse_columns()
    output = np.empty(shape.output, np.float32)
    for slab in range(0, shape.output.z, shape.slab):
        stop = min(slab + shape.slab, shape.output.z)
        transforms.inverse_planes(transforms.columns[0, slab:stop], output[slab:stop])
    return output


def give_back_freed_memory() -> None:
    """Return freed memory from ``malloc`` to the system if possible, so that reuse counts."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def assert_close(result: NDArray[Any], expected: NDArray[Any]) -> None:
    error = np.abs(result - expected).max()
    assert error <= 2e-6 * np.abs(expected).max()


def test_fast_sizes() -> None:
    """Many factors of 2 take less time than a smaller odd size."""
    sizes = [fast_size(n) for n in (1, 11, 17, 19, 27, 29, 31, 63, 99, 125, 143, 147, 169, 257)]
    assert sizes == [1, 11, 18, 20, 27, 30, 32, 64, 100, 128, 144, 150, 176, 260]


def test_fast_sizes_are_of_their_form_and_little_larger_than_they_must_be() -> None:
    powers = [2**a * 3**b * 5**c * 7**d for a in range(9) for b in range(6) for c in range(4)
              for d in range(4)]  # fmt: skip
    allowed = sorted({power * odd for power in powers for odd in (1, 11, 13)})
    for n in range(1, 400):
        least = next(size for size in allowed if size >= n)
        assert fast_size(n) in allowed
        assert least <= fast_size(n) <= max(least, n * 17 / 16)


@every_shape
def test_forward_is_the_padded_transform(shape: PrunedShape, backend: Backend) -> None:
    image = random(*shape.image)
    assert_close(forward(shape, backend, image), np.fft.rfftn(image, shape.size, (0, 1, 2)))


@every_shape
def test_inverse_is_a_crop_of_the_whole_inverse(shape: PrunedShape, backend: Backend) -> None:
    spectrum = np.fft.rfftn(random(*shape.size)).astype(np.complex64)
    z, y, x = shape.output
    whole = np.fft.irfftn(spectrum, shape.size, (0, 1, 2), norm="forward")
    assert_close(inverse(shape, backend, spectrum), whole[:z, :y, :x])


@every_shape
def test_forward_is_linear(shape: PrunedShape, backend: Backend) -> None:
    one, other = random(*shape.image), random(*shape.image, seed=1)
    mixed = forward(shape, backend, one * np.float32(0.75) - other)
    apart = 0.75 * forward(shape, backend, one) - forward(shape, backend, other)
    assert_close(mixed, apart)


@every_shape
def test_an_impulse_becomes_a_plane_wave(shape: PrunedShape, backend: Backend) -> None:
    impulse = np.zeros(shape.image, np.float32)
    at = tuple(extent // 2 for extent in shape.image)
    impulse[at] = 1
    frequencies = np.meshgrid(*map(np.arange, (*shape.size[:2], shape.columns)), indexing="ij")
    turns = sum(f * p / n for f, p, n in zip(frequencies, at, shape.size, strict=True))
    assert_close(forward(shape, backend, impulse), np.exp(-2j * np.pi * np.asarray(turns)))


def test_a_shift_turns_the_phase(backend: Backend) -> None:
    shape = PrunedShape(Vec3(12, 10, 9), Vec3(12, 10, 9))
    image = random(*shape.image)
    shifted = forward(shape, backend, np.roll(image, 3, axis=1))
    phase = np.exp(-2j * np.pi * 3 * np.arange(10) / 10)[None, :, None]
    assert_close(shifted, forward(shape, backend, image) * phase)


def test_scratch_is_what_is_declared() -> None:
    shape = SHAPES[0]
    transforms = PrunedTransforms(shape, 3, 2 * LANES, FftwBackend())
    arrays = [value for value in vars(transforms).values() if isinstance(value, np.ndarray)]
    sizes = [array.nbytes for array in arrays]
    largest = max(array.nbytes for array in arrays if array.dtype == np.complex64)
    assert PrunedTransforms.scratch_bytes(shape, 3, 2 * LANES) == (sum(sizes), largest)


def test_vectors_hold_what_columns_held() -> None:
    columns = (random(3, 5, 2 * LANES) + 1j * random(3, 5, 2 * LANES, seed=1)).astype(np.complex64)
    spectra, back = np.zeros((2, 4, 5, 2, 2, LANES), np.float32), np.zeros_like(columns)
    pack(columns, 3, spectra, 1, 1)
    assert not spectra[:, 0].any()
    assert not spectra[:, :, :, 0].any()
    unpack(spectra, 1, 1, back, 3)
    np.testing.assert_array_equal(back, columns)


@pytest.mark.parametrize("kernel", [(1, 1, 1), (2, 3, 4), (5, 2, 1), (9, 9, 9)], ids=str)
@pytest.mark.parametrize("size", [(16, 9, 10), (9, 16, 22)], ids=str)
def test_kernels_become_their_padded_conjugate_spectra(
    kernel: tuple[int, int, int], size: tuple[int, int, int]
) -> None:
    """A unit spectrum times a kernel's spectrum is the latter, conjugate and scaled."""
    layer = Conv("convolution", 1, 1, Vec3(*kernel), "identity")
    weights = ConvWeights(random(1, 1, *kernel), random(1))
    blocking = Blocking(layer, Shape5(1, 1, *size), threads=1, group=1)
    shape, unit = blocking.pruned, blocking.empty_spectra(blocking.all_vectors)
    unit[..., 0, :], unit[..., 1, :] = 1, 0
    result = np.empty((1, shape.size.z, blocking.all_vectors * LANES), np.complex64)
    steps, scratch = FftLayer(blocking, weights), Scratch(blocking)
    for block in blocking.blocks:
        vectors = unit[block : block + blocking.vectors]
        sums = steps.products(scratch, vectors, block, 0)
        part = np.empty((1, shape.size.z, len(vectors) * LANES), np.complex64)
        unpack(sums, 0, 0, part, 1)
        result[..., block * LANES : (block + len(vectors)) * LANES] = part
    spectrum = result[0, :, : shape.plane].reshape(shape.size.z, shape.size.y, -1)
    expected = np.fft.rfftn(weights.weight[0, 0], shape.size, (0, 1, 2)).conj()
    assert_close(spectrum * shape.size.volume, expected)


LAYERS = [
    (Conv("one voxel", 1, 1, Vec3(1, 1, 1), "identity"), Shape5(1, 1, 5, 6, 7)),
    (Conv("even kernel", 3, 5, Vec3(2, 3, 4), "relu"), Shape5(2, 3, 9, 11, 14)),
    (Conv("whole input", 2, 18, Vec3(3, 4, 5), "tanh"), Shape5(1, 2, 3, 4, 5)),
    (Conv("large batch", 3, 5, Vec3(3, 1, 2), "softmax"), Shape5(70, 3, 6, 7, 8)),
    (Conv("many maps", 80, 21, Vec3(5, 5, 5), "elu"), Shape5(1, 80, 12, 13, 17)),
    (Conv("many planes", 2, 3, Vec3(17, 2, 2), "leaky_relu"), Shape5(1, 2, 90, 9, 19)),
]


@pytest.mark.slow_cases
@every_primitive
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=[layer.name for layer, _ in LAYERS])
@pytest.mark.usefixtures("backend")
def test_layers_agree_with_the_reference(primitive: Primitive, layer: Conv, shape: Shape5) -> None:
    x = random(*shape[:2], shape.z * 2, shape.y, shape.x)[:, :, ::2]
    before = x.copy()
    weights = ConvWeights(random(*layer.weight_shape, seed=1), random(layer.out_features, seed=2))
    expected = reference.convolution(x, layer, weights)
    run = primitive.build(layer, shape, weights)
    for _ in range(2):  # what the first call leaves in scratch memory must not matter
        y = run(x)
        assert y.flags.c_contiguous
        assert np.abs(y - expected).max() <= primitive.accuracy * np.abs(expected).max()
    np.testing.assert_array_equal(x, before)


@every_primitive
def test_results_do_not_depend_on_the_number_of_threads(primitive: Primitive) -> None:
    layer, shape = LAYERS[1]
    weights = ConvWeights(random(*layer.weight_shape), random(layer.out_features))
    x = random(*shape)
    single = type(primitive)(Device("cpu", "one thread", 4 << 30, 1, 1e11, 1e10))  # type: ignore[call-arg]
    expected = single.build(layer, shape, weights)(x)
    for _ in range(3):
        np.testing.assert_array_equal(primitive.build(layer, shape, weights)(x), expected)


@every_primitive
def test_a_single_map_is_work_for_all_threads(
    primitive: Primitive, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = CountingWorkers(CPU.threads)
    monkeypatch.setattr(
        "znni.primitives.cpu.fft_whole_image.blocking.workers", lambda _threads: pool
    )
    layer, shape = Conv("one map", 1, 1, Vec3(3, 5, 10), "relu"), Shape5(1, 1, 13, 64, 260)
    weights = ConvWeights(random(*layer.weight_shape), random(1))
    primitive.build(layer, shape, weights)(random(*shape))
    assert min(pool.tasks) >= CPU.threads


@pytest.mark.slow_cases
@every_primitive
@pytest.mark.parametrize("maps", [(11, 13), (1, 31), (29, 3)], ids=str)
@pytest.mark.usefixtures("backend")
def test_memory_is_what_is_declared(
    primitive: Primitive, maps: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = JointWorkers(CPU.threads)
    monkeypatch.setattr(
        "znni.primitives.cpu.fft_whole_image.blocking.workers", lambda _threads: pool
    )
    layer = Conv("convolution", *maps, Vec3(3, 2, 5), "relu")
    shape = Shape5(2, maps[0], 41, 47, 59)
    weights = ConvWeights(random(*layer.weight_shape), random(maps[1]))
    x = random(*shape)
    run = primitive.build(layer, shape, weights)
    run(x)
    give_back_freed_memory()
    with peak_memory() as peak:
        run(x)
    declared, measured = primitive.cost(layer, shape).memory.working, peak.added + x.nbytes
    # The allocator, the interpreter and huge pages may add a little.
    assert measured <= declared + 3 * 2**20
    assert declared <= 1.15 * measured


def test_scipy_serves_where_pyfftw_is_absent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pyfftw", None)
    with caplog.at_level(logging.INFO, "znni"):
        assert isinstance(pruned_fft.backend.__wrapped__(), ScipyBackend)
    assert "pyfftw" in caplog.text


def test_fftw_is_imported_without_its_interfaces_until_somebody_uses_them() -> None:
    program = """
import sys
from znni.primitives.cpu.fft_whole_image import pruned_fft
assert isinstance(pruned_fft.backend(), pruned_fft.FftwBackend)
slow = {"scipy.fft", "scipy.fftpack", "dask", "cupy", "pyarrow"}
assert not slow & set(sys.modules), slow & set(sys.modules)
import pyfftw
assert pyfftw.interfaces.numpy_fft.fft([1, 0])[1] == 1
import dask.array
"""
    subprocess.run([sys.executable, "-c", program], check=True)
