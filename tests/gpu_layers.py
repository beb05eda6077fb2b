"""What the tests of GPU primitives share: a GPU that need not be there, and parity on one that is."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from layers import Case, assert_accurate, random_case

from znni.cuda import cupy
from znni.machine import Device
from znni.network import Operation
from znni.primitive import Primitive
from znni.shapes import Shape5

# An H200, by its data sheet: plans and costs need no more.
DEVICE = Device("gpu", "NVIDIA H200", 141 * 10**9, 1, flops=66.9e12, bandwidth=4.8e12)

needs_gpu = pytest.mark.gpu
needs_compiler = pytest.mark.skipif(
    find_spec("cupy") is None, reason="needs CuPy, which is for Linux on x86-64"
)


def assert_parity(primitive: Primitive, layer: Operation, shape: Shape5) -> None:
    """Hold a run on views and on contiguous inputs, over poisoned memory, to the reference."""
    out = primitive.out_shape(layer, shape)
    assert out is not None
    whole = random_case(layer, Shape5(*shape[:2], shape.z + 1, shape.y + 2, shape.x + 3))
    view = cupy().asarray(whole.x)[:, :, 1:, 2:, 3:]
    for x in (view, cupy().ascontiguousarray(view)):
        poison = cupy().full(out, np.nan, np.float32)
        del poison  # the pool gives its memory to the output
        before = x.copy()
        y = primitive.build(layer, shape, whole.weights)(x)
        assert y.shape == tuple(out)
        assert y.flags.c_contiguous
        assert bool((x == before).all())
        case = Case(layer, whole.weights, cupy().asnumpy(x))
        assert_accurate(primitive, case, cupy().asnumpy(y))
