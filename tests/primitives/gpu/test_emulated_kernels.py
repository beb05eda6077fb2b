"""Kernels of any GPU since Ampere give the reference: the host emulates one.

The order of threads, and when copies to shared memory are done, changes from case to case.
"""

from __future__ import annotations

from itertools import cycle
from typing import get_args

import numpy as np
import pytest
from emulated_gpu import EMULATED, ORDERS, emulated_gpu, needs_emulation
from emulation.kernels_on_host import Kernel, compiled
from layers import LOCAL, assert_accurate, case_for, random_case, scaled
from local_primitives import MODULES, check

from bench import reference
from znni.core.shapes import Box, Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.network.layers import NO_PADDING, Activation, Conv, Operation, PadLayer, Pool, PooledConv
from znni.network.padding import Beyond
from znni.plans.primitive import Primitive
from znni.primitives import reference as reference_of_layers
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR, TensorFormat
from znni.primitives.gpu.direct import primitive as direct
from znni.primitives.gpu.direct_pooled import primitive as direct_pooled
from znni.primitives.gpu.direct_pooled_tensor import primitive as direct_pooled_tensor
from znni.primitives.gpu.direct_tensor.primitive import GpuDirectTensor
from znni.primitives.gpu.fft_tiled import primitive as fft_tiled
from znni.primitives.gpu.lowered_tensor import primitive as lowered_tensor
from znni.primitives.gpu.window_pooling import primitive as window_pooling

pytestmark = needs_emulation

ONE, TWO, THREE = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3)

CONVOLUTIONS = {
    "few maps": (Conv("layer", 5, 9, Vec3(2, 1, 3), "tanh"), Shape5(2, 5, 9, 19, 37)),
    "several passes": (Conv("layer", 3, 170, ONE, "elu"), Shape5(1, 3, 6, 9, 10)),
    "several chunks": (Conv("layer", 40, 16, THREE, "relu"), Shape5(1, 40, 7, 12, 19)),
    "softmax": (Conv("layer", 17, 3, ONE, "softmax"), Shape5(2, 17, 4, 11, 9)),
}
SUMS_IN_PASSES = Conv("layer", 320, 8, THREE, "elu"), Shape5(1, 320, 4, 5, 6)
POOLED = PooledConv(Conv("layer", 2, 17, THREE, "relu"), Pool("pool", TWO)), Shape5(2, 2, 9, 12, 21)
TILED = "gpu_fft_tiled_12", "gpu_fft_tiled_16_float16"
orders = cycle(ORDERS)


def is_the_reference(primitive: Primitive, layer: Operation, shape: Shape5) -> None:
    with emulated_gpu(next(orders)):
        assert_accurate(primitive, random_case(layer, shape))


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [FLOAT16, FLOAT16_PAIR], ids=lambda numbers: numbers.name)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_direct_convolution_on_tensor_cores(numbers: TensorFormat, name: str) -> None:
    is_the_reference(GpuDirectTensor(EMULATED, numbers), *CONVOLUTIONS[name])


@pytest.mark.slow
def test_sums_of_several_passes_are_added() -> None:
    is_the_reference(GpuDirectTensor(EMULATED, FLOAT16_PAIR), *SUMS_IN_PASSES)


@pytest.mark.parametrize("factor", [1e-30, 3e4, 1e30])
def test_images_of_any_range(factor: float) -> None:
    case = scaled(random_case(*CONVOLUTIONS["softmax"]), factor)
    case = case._replace(layer=Conv("layer", 17, 3, ONE, "identity"))
    with emulated_gpu():
        assert_accurate(GpuDirectTensor(EMULATED, FLOAT16), case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "primitive",
    [
        *direct.primitives(EMULATED),
        *lowered_tensor.primitives(EMULATED),
        *(each for each in fft_tiled.primitives(EMULATED) if each.name in TILED),
    ],
    ids=lambda primitive: primitive.name,
)
def test_other_convolutions(primitive: Primitive) -> None:
    maps = (20, 3) if primitive.name.startswith("gpu_lowered") else (20, 9)
    layer = Conv("layer", *maps, THREE, "relu")
    case = case_for(primitive, layer, Shape5(1, 20, 12, 17, 19))
    with emulated_gpu(next(orders)):
        assert_accurate(primitive, case)


@pytest.mark.parametrize(
    "primitive",
    [*direct_pooled.primitives(EMULATED), *direct_pooled_tensor.primitives(EMULATED)],
    ids=lambda primitive: primitive.name,
)
def test_pooled_convolutions(primitive: Primitive) -> None:
    is_the_reference(primitive, *POOLED)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "primitive",
    [
        *(each for each in fft_tiled.primitives(EMULATED) if each.name in TILED),
        *direct_pooled_tensor.primitives(EMULATED)[:1],
    ],
    ids=lambda primitive: primitive.name,
)
def test_an_output_is_written_into_a_view_alone(primitive: Primitive) -> None:
    layer: Operation = Conv("layer", 20, 9, THREE, "relu")
    shape = Shape5(2, 20, 12, 17, 19)
    if primitive.name.startswith("gpu_direct_pooled"):
        layer, shape = POOLED
    case = case_for(primitive, layer, shape)
    out = primitive.out_shape(layer, case.shape)
    assert out is not None
    assert primitive.cost(layer, case.shape).writes_views
    with emulated_gpu(next(orders)):
        whole = cupy().empty((2 * out.n, out.f + 3, out.z + 4, out.y + 2, out.x + 5), np.float32)
        whole.fill(np.nan)
        given = whole[::2, 1:-2, 3:-1, 1:-1, 2:-3]
        with output_into(given):
            primitive.build(layer, case.shape, case.weights)(cupy().asarray(case.x))
        assert_accurate(primitive, case, given.get())
        given.fill(np.nan)
        assert np.isnan(whole.get()).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", LOCAL)
def test_layers_of_tiled_networks(name: str) -> None:
    with emulated_gpu(next(orders)):
        check(random_case(*LOCAL[name]), device=EMULATED, modules=MODULES)


@pytest.mark.parametrize("mode", get_args(Beyond))
def test_samples_beyond_the_volume_are_filled(mode: Beyond) -> None:
    case = random_case(PadLayer("layer", NO_PADDING, mode), Shape5(2, 3, 7, 9, 11))
    with emulated_gpu(next(orders)):
        check(case, Box(Vec3(1, 0, 2), Vec3(6, 7, 11)), device=EMULATED)


def test_fragments_of_averages() -> None:
    case = random_case(Pool("layer", Vec3(2, 1, 3), "average"), Shape5(2, 3, 7, 5, 11))
    _, fragments = window_pooling.primitives(EMULATED)
    with emulated_gpu(next(orders)):
        found = case.run(fragments)
    expected = reference.pooling_fragments(case.x, case.layer)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(case.x).max())


@pytest.mark.parametrize(
    ("activation", "most"), [("elu", 1e-5), ("gelu", 8e-7), ("gelu_tanh", 1e-6)]
)
def test_fast_activations_have_the_errors_that_they_state(
    activation: Activation, most: float
) -> None:
    source = (
        activation_source(activation, rounded=True)
        + """
extern "C" __global__ void apply(const float* in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = activation(in[i]);
}
"""
    )
    large = np.geomspace(12, 3e38, 255)
    x = np.concatenate([np.linspace(-12, 12, 15872), large, -large, [np.inf, np.nan]])
    x = x.astype(np.float32)
    with emulated_gpu():
        made = cupy().empty(x.size, np.float32)
        Kernel(compiled(source), "apply", ORDERS[0])((64,), (256,), (cupy().asarray(x), made))
        found = np.asarray(made.get(), np.float64)
    with np.errstate(over="ignore"):
        exact = reference_of_layers.activation(x.astype(np.float64), activation)
    np.testing.assert_allclose(
        found[:-2], exact[:-2], rtol=1e-5 if activation == "elu" else 2e-7, atol=most
    )
    for most_size in (1e-3, 0.01, 0.1, 1, 12):
        small = np.abs(x) <= most_size
        gap = np.abs(found[small] - exact[small]).max()
        assert gap <= 1e-5 * np.abs(exact[small]).max()
    assert found[-2] == np.inf
    assert np.isnan(found[-1])
