"""Direct convolution by products of warpgroups gives the reference: the host emulates Hopper.

Blocks compute several places. Some keep the image for all passes, with all weights or without.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from emulated_gpu import EMULATED_HOPPER, ORDERS, emulated_gpu, needs_emulation
from layers import assert_accurate, random_case
from packed_values import empty, packed, unpacked

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.network.layers import Conv, ConvTranspose, PackedLayer
from znni.network.weights import Weights
from znni.primitives import tiled_reference
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR, TensorFormat
from znni.primitives.gpu.direct_tensor.primitive import GpuDirectTensor
from znni.primitives.gpu.packed.convolution import GpuPackedConvolution
from znni.primitives.gpu.packed.phases import PhasedWork

pytestmark = needs_emulation

ONE, TWO, THREE = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3)
PACKED = {
    "one chunk": (Conv("layer", 16, 16, THREE, "elu"), Shape5(1, 16, 19, 19, 21)),
    "odd groups": (Conv("layer", 24, 40, THREE, "relu"), Shape5(1, 24, 12, 20, 21)),
    "strided": (Conv("layer", 24, 40, THREE, "relu", stride=TWO), Shape5(1, 24, 21, 20, 41)),
    "few columns": (Conv("layer", 40, 24, THREE, "elu"), Shape5(1, 40, 21, 20, 21)),
    "two taps along z": (
        Conv("layer", 16, 32, Vec3(2, 3, 1), "relu"),
        Shape5(2, 16, 17, 18, 32),
    ),
    "few voxels": (Conv("layer", 80, 40, THREE, "relu"), Shape5(2, 80, 6, 7, 6)),
    "few voxels, strided": (
        Conv("layer", 72, 40, THREE, "relu", stride=TWO),
        Shape5(1, 72, 9, 9, 9),
    ),
    "several passes": (Conv("layer", 24, 168, ONE, "relu"), Shape5(1, 24, 9, 18, 35)),
    "many chunks": (Conv("layer", 128, 320, ONE, "relu"), Shape5(1, 128, 9, 10, 12)),
    "transposed": (
        ConvTranspose("layer", 16, 24, TWO, "relu", TWO).local,
        Shape5(2, 16, 9, 17, 17),
    ),
    "transposed, odd groups": (
        ConvTranspose("layer", 40, 24, TWO, "elu", TWO).local,
        Shape5(1, 40, 9, 18, 33),
    ),
    "phase by phase": (
        ConvTranspose("layer", 32, 16, Vec3(4, 4, 4), "identity", TWO, ONE, ONE).local,
        Shape5(1, 32, 10, 18, 18),
    ),
    "phase by phase, odd groups": (
        ConvTranspose("layer", 40, 24, Vec3(3, 4, 4), "relu", Vec3(1, 2, 2), ONE, ONE).local,
        Shape5(2, 40, 7, 12, 21),
    ),
}
KEEP_IMAGES = "several passes", "transposed", "transposed, odd groups"
STACK_TAPS = "few columns", "two taps along z"
PHASED = "phase by phase", "phase by phase, odd groups"
orders = cycle(ORDERS)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [FLOAT16, FLOAT16_PAIR], ids=["", "pairs"])
@pytest.mark.parametrize("name", PACKED)
def test_convolutions_of_packed_values(numbers: TensorFormat, name: str) -> None:
    layer, shape = PACKED[name]
    sums = isinstance(layer, Conv)
    operation = PackedLayer(layer, True, True, sums, numbers.parts)
    primitive = GpuPackedConvolution(EMULATED_HOPPER, numbers)
    work = primitive.work(operation, shape)
    assert work is not None
    assert isinstance(work, PhasedWork) == (name in PHASED)
    parts = work.pieces if isinstance(work, PhasedWork) else (work,)
    blocks = [strip.block for pieces in parts for strip in pieces.strips]
    assert all(block.chip.has_warpgroups for block in blocks)
    assert all(block.keeps_image for block in blocks) or name not in KEEP_IMAGES
    assert any(block.stacks_taps for block in blocks) or name not in STACK_TAPS
    assert any(block.takes_turns for block in blocks) or name != "two taps along z"
    case = random_case(layer, shape)
    with emulated_gpu(next(orders)):
        run = primitive.build(operation, shape, case.weights)
        y = empty(work.out, numbers.parts, gaps=True)
        with output_into(y):
            run(packed(case.x, 4.0, numbers.parts, gaps=True))
        found = unpacked(y)
    given = {} if case.weights is None else {layer.name: case.weights}
    right = tiled_reference.local(layer, Weights(given, "test"), case.inputs)
    np.testing.assert_allclose(found, right, rtol=0, atol=numbers.accuracy * np.abs(right).max())


@pytest.mark.slow_cases
@pytest.mark.parametrize("numbers", [FLOAT16, FLOAT16_PAIR], ids=lambda numbers: numbers.name)
def test_convolutions_in_float32(numbers: TensorFormat) -> None:
    for layer, shape in (
        (Conv("layer", 40, 16, THREE, "relu"), Shape5(1, 40, 7, 12, 19)),
        (Conv("layer", 3, 170, ONE, "elu"), Shape5(2, 3, 6, 9, 10)),
    ):
        with emulated_gpu(next(orders)):
            assert_accurate(GpuDirectTensor(EMULATED_HOPPER, numbers), random_case(layer, shape))
