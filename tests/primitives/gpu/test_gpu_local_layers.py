"""Layers of tiled networks on a GPU: what primitives compute for a part of a volume."""

from __future__ import annotations

import numpy as np
import pytest
from devices import to_gpu
from gpu_layers import H200, chips, needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_resources import resource_usage
from layers import LOCAL, Case, random_case
from local_layers import KINDS, boxes, local_cases
from local_primitives import DENSE, MODULES, check

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.detect import detect_machine
from znni.network.layers import (
    NO_PADDING,
    Conv,
    GlobalPool,
    Normalize,
    PadLayer,
    Pool,
    Upsample,
    VoxelNorm,
)
from znni.network.weights import Weights
from znni.primitives import tiled_reference
from znni.primitives.gpu.arranged import primitive as arranged
from znni.primitives.gpu.common import clearing, pointwise
from znni.primitives.gpu.common.hardware import Chip
from znni.primitives.gpu.common.number_formats import FLOAT16_PAIR
from znni.primitives.gpu.direct_tensor.launch import Gathering, image_source
from znni.primitives.gpu.edge_filling import primitive as edge_filling
from znni.primitives.gpu.global_pooling import primitive as global_pooling
from znni.primitives.gpu.normalization import primitive as normalization
from znni.primitives.gpu.upsampling import primitive as upsampling
from znni.primitives.gpu.voxel_norm import primitive as voxel_norm
from znni.primitives.gpu.window_pooling import primitive as window_pooling

TWO = Vec3(2, 2, 2)
THREE = Vec3(3, 3, 3)

# Layers whose kernels write views with gaps, or gather every few samples as they lay them out.
EXAMPLES: dict[str, tuple[Conv | Pool, Shape5]] = {
    "plain": (Conv("layer", 20, 40, THREE, "relu"), Shape5(1, 20, 9, 21, 37)),
    "batch": (Conv("layer", 5, 7, Vec3(1, 3, 2), "elu"), Shape5(3, 5, 6, 12, 20)),
    "many maps": (Conv("layer", 40, 170, TWO, "identity"), Shape5(1, 40, 6, 11, 19)),
    "strided": (Conv("layer", 16, 24, THREE, "relu", stride=TWO), Shape5(1, 16, 9, 23, 41)),
    "strided, odd": (Conv("layer", 24, 32, THREE, "relu", stride=TWO), Shape5(2, 24, 8, 12, 40)),
    "anisotropic": (
        Conv("layer", 8, 16, Vec3(1, 3, 3), "leaky_relu", stride=Vec3(1, 2, 2)),
        Shape5(1, 8, 5, 19, 35),
    ),
    "short": (Conv("layer", 16, 8, Vec3(1, 1, 1), "relu", stride=TWO), Shape5(1, 16, 7, 9, 33)),
    "far": (Conv("layer", 16, 8, TWO, "prelu", stride=THREE), Shape5(1, 16, 9, 10, 32)),
    "pooled": (Pool("layer", Vec3(1, 2, 3), step=Vec3(1, 2, 3)), Shape5(2, 3, 5, 12, 30)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", LOCAL)
def test_an_example_is_the_reference(name: str) -> None:
    check(random_case(*LOCAL[name]), device=detect_machine().gpus[0])


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_output_may_have_gaps(name: str) -> None:
    check(random_case(*EXAMPLES[name]), device=detect_machine().gpus[0], modules=MODULES + DENSE)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_layer_is_the_reference(kind: str, data: st.DataObject) -> None:
    check(data.draw(local_cases(kind)), device=detect_machine().gpus[0])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["upsampling", "poolings", "paddings"])
@settings(max_examples=20)
@given(data=st.data())
def test_samples_beyond_the_volume_do_not_count(kind: str, data: st.DataObject) -> None:
    case = data.draw(local_cases(kind))
    if case.layer.sees_edges:
        check(case, data.draw(boxes(case.shape.size)), device=detect_machine().gpus[0])


@pytest.mark.gpu
@pytest.mark.parametrize("width", [90, 92])
@pytest.mark.parametrize("groups", [2, 12])
def test_large_maps_are_normalized_to_the_last_digits(groups: int, width: int) -> None:
    layer, shape = (
        Normalize("layer", 12, groups, activation="leaky_relu"),
        Shape5(2, 12, 40, 70, width),
    )
    case = random_case(layer, shape)
    # A mean far from zero costs digits of a sum of squares, and so does a first sample like this.
    case = case._replace(x=case.x + np.float32(50))
    case.x[:, :, 0, 0, 0] = 0
    expected = tiled_reference.local(layer, Weights({"layer": case.weights}, "test"), case.inputs)
    (primitive,) = normalization.primitives(detect_machine().gpus[0])
    run = primitive.build(layer, shape, case.weights)
    found = [run(to_gpu(case.x)).get() for _ in range(2)]
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=3e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(*found)
    there = to_gpu(case.x)
    with output_into(there):
        run(there)
    np.testing.assert_array_equal(there.get(), found[0])


@pytest.mark.slow
@needs_compiler
@chips
def test_kernels_compile_without_spills(chip: Chip) -> None:
    pool = Pool("pool", Vec3(3, 3, 3), step=TWO)
    for source, options in (
        (pointwise.source("gelu"), pointwise.option("ADD")),
        (pointwise.source("prelu"), pointwise.option("SCALE")),
        (window_pooling.source(), window_pooling.options(pool)),
        (upsampling.source(), upsampling.options(Upsample("up", TWO, "trilinear"))),
        (edge_filling.source(), edge_filling.options(PadLayer("pad", NO_PADDING, "reflect"))),
        (arranged.source("elu"), arranged.steps(TWO)),
        (clearing.source(), ()),
        *(
            (normalization.source(norm), normalization.options(norm, together))
            for norm in (Normalize("norm", 12, 4), Normalize("norm", 12, 4, by="response"))
            for together in (1, 4)
        ),
        (normalization.scaling_source("gelu"), ()),
        *(
            (voxel_norm.source("gelu"), voxel_norm.options(VoxelNorm("norm", maps, 1)))
            for maps in (32, 64, 300)
        ),
        *(
            (global_pooling.source(), global_pooling.options(each))
            for each in (GlobalPool("average"), GlobalPool("peak", "max"))
        ),
        (image_source(FLOAT16_PAIR, Gathering(TWO, TWO)), ()),
    ):
        for usage in resource_usage(source, chip.architecture, options).values():
            assert usage.spills == 0


@pytest.mark.slow
@settings(max_examples=50)
@given(local_cases("convolutions") | local_cases("transposed"))
def test_the_passes_around_a_dense_convolution_are_counted(case: Case) -> None:
    for primitive in arranged.primitives(H200):
        if (out := primitive.out_shape(case.layer, case.shape)) is None:
            continue
        assert (
            out
            == tiled_reference.local(
                case.layer, Weights({case.layer.name: case.weights}, "test"), case.inputs
            ).shape
        )
        cost = primitive.cost(case.layer, case.shape)
        assert cost.memory.working == case.shape.nbytes + out.nbytes + cost.memory.workspace
        assert cost.memory.workspace > 0
