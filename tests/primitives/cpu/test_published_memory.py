"""Declared memory compared with ZNNi's formulas for its CPU algorithms (SC'16).

If our memory differs, a comment gives each differing term and its reason. The numbers of inputs,
maps and threads, and all extents, are different primes, so that no term hides behind another.
Sizes are in elements of four bytes. S inputs of f maps of n voxels give f' maps of n' voxels. A
map's transform takes n~ elements. There are T threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pytest

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Device
from znni.network.layers import Conv
from znni.plans.cost import Memory
from znni.primitives.cpu.direct import primitive as direct
from znni.primitives.cpu.fft_whole_image import primitive as fft_whole_image
from znni.primitives.cpu.fft_whole_image.base import WholeImageFft
from znni.primitives.cpu.fft_whole_image.blocking import Blocking
from znni.primitives.cpu.fft_whole_image.pruned_fft import FftwBackend

THREADS = 37
DEVICE = Device("cpu", "any", 1 << 40, THREADS, flops=1e11, bandwidth=1e10)
DATA_PARALLEL, TASK_PARALLEL = fft_whole_image.primitives(DEVICE)
(DIRECT,) = direct.primitives(DEVICE)

KERNEL = Vec3(2, 3, 5)
# Transforms of 7, 11 and 13 voxels have the same size; those of 17, 19 and 23 the next fast size.
FAST, NEXT_FAST = Vec3(7, 11, 13), Vec3(17, 19, 23)
LAYERS = [
    (Conv("more out", 29, 53, KERNEL, "relu"), Shape5.of(3, 29, FAST)),
    (Conv("more in", 53, 29, KERNEL, "relu"), Shape5.of(3, 53, FAST)),
    (Conv("many out", 2, 997, KERNEL, "relu"), Shape5.of(31, 2, NEXT_FAST)),
    (Conv("many in", 997, 2, KERNEL, "relu"), Shape5.of(31, 997, NEXT_FAST)),
    (Conv("many inputs", 41, 43, KERNEL, "relu"), Shape5.of(211, 41, NEXT_FAST)),
    (Conv("one out", 47, 1, KERNEL, "relu"), Shape5.of(1009, 47, NEXT_FAST)),
]


@dataclass(frozen=True)
class Case:
    """Sizes of a layer in the paper's terms, and of our blocks."""

    layer: Conv
    shape: Shape5
    primitive: WholeImageFft

    @property
    def declared(self) -> Memory:
        return self.primitive.cost(self.layer, self.shape).memory

    @cached_property
    def blocking(self) -> Blocking:
        return Blocking(self.layer, self.shape, THREADS, self.primitive.group)

    @property
    def maps_in(self) -> int:
        """Input maps: S f."""
        return self.shape.n * self.shape.f

    @property
    def maps_out(self) -> int:
        """Output maps: S f'."""
        return self.shape.n * self.layer.out_features

    @property
    def voxels(self) -> int:
        """Voxels of one map: n."""
        return self.shape.size.volume

    @property
    def out_voxels(self) -> int:
        """Voxels of one output map: n'."""
        return (self.shape.size - KERNEL + 1).volume

    @cached_property
    def size(self) -> Vec3:
        """Extents of the transform, which are fast ones, because FFTs of 17 or 19 are slow."""
        return self.shape.size if self.shape.size == FAST else Vec3(18, 20, 24)

    @property
    def transformed(self) -> int:
        """Elements of a map's transform: n~."""
        return self.size.z * self.plane

    @property
    def plane(self) -> int:
        """Elements of a plane of a transform, real to complex."""
        return 2 * (self.size.x // 2 + 1) * self.size.y

    @property
    def filling(self) -> int:
        """Elements that pad a transform's planes to whole vectors of 16 complex numbers."""
        return self.size.z * (-self.plane % 32)

    @property
    def half(self) -> int:
        """Elements h of a map transformed along y and x only, in the planes that hold voxels."""
        return self.shape.z * self.plane

    @property
    def half_out(self) -> int:
        """Elements h' of an output map before y and x are transformed back, in wanted planes."""
        return (self.shape.z - KERNEL.z + 1) * self.plane

    @property
    def block(self) -> int:
        """Elements b of a map's spectrum in a block of frequencies."""
        return self.size.z * 32 * self.blocking.vectors

    @property
    def products(self) -> int:
        """Elements of a thread's kernels, transformed along y and x for a block, and its sums."""
        maps = min(self.primitive.group, self.layer.out_features)
        kernels = maps * self.shape.f * KERNEL.z * 32 * self.blocking.vectors
        return kernels + maps * self.shape.n * self.block


@pytest.fixture(autouse=True)
def fftw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare memory for FFTW: SciPy takes one more result per thread. Neither is run here."""
    monkeypatch.setattr("znni.primitives.cpu.fft_whole_image.blocking.backend", FftwBackend)


def cases(primitive: WholeImageFft) -> list[Case]:
    return [Case(layer, shape, primitive) for layer, shape in LAYERS]


def data_parallel_stages(case: Case) -> list[int]:
    inputs, outputs, spectrum = case.maps_in, case.maps_out, case.transformed
    published = [
        inputs * (case.voxels + spectrum),
        inputs * spectrum + outputs * case.out_voxels + (case.shape.n + 1) * spectrum,
    ]
    both = inputs * case.filling
    few_in, few_out = min(4, case.shape.f), min(4, case.layer.out_features)
    # A few maps together are transformed along y and x before z, so that threads share the work
    # with few barriers. The paper pads and transforms one map in place.
    first = both + case.shape.n * few_in * case.half
    second = (
        both
        # The caller keeps its input, which other calls may read.
        + inputs * case.voxels
        # No whole transform of an output map or a kernel is ever held...
        - (case.shape.n + 1) * spectrum
        # ... but a few half-transformed output maps are...
        + case.shape.n * few_out * case.half_out
        # ... and, for a block of frequencies, each thread's kernels and sums.
        + THREADS * case.products
    )
    return [published[0] + first, published[1] + second]


def task_parallel_stages(case: Case) -> list[int]:
    inputs, outputs, spectrum = case.maps_in, case.maps_out, case.transformed
    at_work = min(THREADS, case.layer.out_features)
    published = [
        inputs * (case.voxels + spectrum),
        (inputs + outputs) * spectrum + at_work * spectrum,
        outputs * (case.out_voxels + spectrum),
    ]
    # The same memory holds half-transformed inputs and outputs. A block of frequencies is
    # transformed along z, multiplied and transformed back in cache, and written over its inputs.
    shared = max(inputs, outputs) * case.half
    first = shared - inputs * spectrum
    second = (
        shared
        - (inputs + outputs) * spectrum
        # No whole transform of a kernel is held...
        - at_work * spectrum
        # ... but each thread has a block of all inputs' spectra, its kernels and sums.
        + THREADS * (inputs * case.block + case.products)
        # The caller keeps its input, which other calls may read.
        + inputs * case.voxels
    )
    third = shared - outputs * spectrum + inputs * case.voxels
    return [published[0] + first, published[1] + second, published[2] + third]


STAGES: dict[WholeImageFft, Callable[[Case], list[int]]] = {
    DATA_PARALLEL: data_parallel_stages,
    TASK_PARALLEL: task_parallel_stages,
}
BOTH = pytest.mark.parametrize("primitive", STAGES, ids=lambda primitive: primitive.name)
EACH_LAYER = pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=[la.name for la, _ in LAYERS])


@BOTH
@EACH_LAYER
def test_fft_takes_what_the_paper_says_but_for_the_terms_that_differ(
    primitive: WholeImageFft, layer: Conv, shape: Shape5
) -> None:
    case = Case(layer, shape, primitive)
    assert case.declared.working == 4 * max(STAGES[primitive](case))


@BOTH
def test_no_stage_is_hidden_by_the_others_of_all_layers(primitive: WholeImageFft) -> None:
    found = [STAGES[primitive](case) for case in cases(primitive)]
    largest = {stages.index(max(stages)) for stages in found}
    # The second stage of task_parallel holds everything that its first stage holds.
    assert largest == ({1, 2} if primitive is TASK_PARALLEL else {0, 1})


@BOTH
def test_scratch_for_padding_is_kept_by_each_thread(primitive: WholeImageFft) -> None:
    for case in cases(primitive):
        slab = case.blocking.pruned.slab
        padding = (
            slab * case.shape.y * case.size.x  # padded rows, and those transformed back
            + slab * case.plane  # their planes
            + case.blocking.maps * case.size.z * 2 * 16 * case.blocking.vectors  # lines along z
        )
        plans = 6 * 16 * 1024  # FFTW's own, in bytes
        # Kernels are transformed by products with waves. One table is for planes, one for z.
        waves_of_planes = KERNEL.y * KERNEL.x * (case.plane + -case.plane % 32)
        waves_of_lines = 2 * (case.size.z // 2 + 1) * KERNEL.z
        kept = 4 * (THREADS * padding + waves_of_planes + waves_of_lines) + THREADS * plans
        assert case.declared.resident == kept


@EACH_LAYER
def test_direct_takes_input_and_output_and_a_band_of_each_thread(
    layer: Conv, shape: Shape5
) -> None:
    case = Case(layer, shape, DATA_PARALLEL)
    published = case.maps_in * case.voxels + case.maps_out * case.out_voxels
    out = Shape5.of(shape.n, layer.out_features, shape.size - KERNEL + 1)
    band = direct.Blocking.of(layer, shape, out)
    rows = band.rows + KERNEL.y - 1
    needed = (band.rows - 1) * shape.x + out.x
    # Rows of input maps are copied end to end, so that a register tile runs across them.
    copied = band.features * KERNEL.z * rows * shape.x + band.positions - needed
    kept = 1 if band.features == shape.f else band.tiles
    sums = kept * band.maps * band.positions
    assert DIRECT.cost(layer, shape).memory.working == 4 * (published + THREADS * (copied + sums))
