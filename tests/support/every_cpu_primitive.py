"""Compare every primitive of the CPU with the float64 reference, one case each.

``python every_cpu_primitive.py [NAMES]`` prints a line for each primitive, or for those whose names
begin so. On an emulated processor the tests of all primitives would take hours. Exit with 1 if any
differs.
"""

from __future__ import annotations

import platform
import sys
import time

import numpy as np
from layers import CONVOLUTION, EXAMPLES, MACHINE, Case, assert_accurate, random_case, suited

from bench import reference
from znni.network.layers import ConvPair, Pool, PooledConv
from znni.network.weights import Weights
from znni.plans.primitive import Primitive
from znni.primitives import tiled_reference
from znni.primitives.catalogue import catalogue


def check(primitive: Primitive, case: Case) -> None:
    """Compare a primitive with the reference.

    Raises:
        AssertionError: it differs.
    """
    layer = case.layer
    if layer is CONVOLUTION[0] or isinstance(layer, PooledConv):
        assert_accurate(primitive, case)
        return
    if isinstance(layer, ConvPair):
        assert case.weights is not None
        after = case.weights.after
        assert after is not None
        weights = Weights({layer.conv.name: case.weights, layer.after.name: after}, "test")
        between = tiled_reference.local(layer.conv, weights, [case.x])
        right = tiled_reference.local(layer.after, weights, [between])
    elif isinstance(layer, Pool) and primitive.out_shape(layer, case.shape).n > case.shape.n:
        right = reference.pooling_fragments(case.x, layer)
    else:
        layers = {} if case.weights is None else {layer.name: case.weights}
        right = tiled_reference.local(layer, Weights(layers, "test"), case.inputs)
    scale = max(1.0, float(np.abs(right).max()))
    np.testing.assert_allclose(case.run(primitive), right, rtol=0, atol=1e-5 * scale)


def main() -> int:
    """Check all, and return the exit code."""
    wrong = 0
    print(platform.machine(), MACHINE.host.name, flush=True)
    for primitive in catalogue(MACHINE, "cpu").values():
        if not primitive.name.startswith(tuple(sys.argv[1:]) or ""):
            continue
        start = time.perf_counter()
        shapes = ((layer, suited(primitive, layer, shape)) for layer, shape in EXAMPLES)
        layer, shape = next(found for found in shapes if found[1] is not None)
        try:
            check(primitive, random_case(layer, shape))
            said = "agrees"
        except Exception as error:  # each is told, and the others are checked
            wrong += 1
            said = f"DIFFERS: {type(error).__name__}: {str(error).strip()[:200]}"
        print(f"{primitive.name}: {said}, {time.perf_counter() - start:.1f} s", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
