"""Output streamed past the caches is the same, wherever its cache lines begin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from layers import Case, random_case

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Machine
from znni.network.layers import Conv, Layer, Pool
from znni.network.weights import Float32
from znni.plans.primitive import Primitive
from znni.primitives.catalogue import catalogue
from znni.primitives.cpu.common import streaming
from znni.primitives.cpu.common.lazy_kernel import lazy_njit
from znni.primitives.cpu.common.streaming import stream

LAYERS: dict[str, list[tuple[Layer, Shape5]]] = {
    "direct": [
        (Conv("first", 1, 19, Vec3(2, 3, 4), "relu"), Shape5(2, 1, 4, 23, 41)),
        (Conv("many maps", 200, 9, Vec3(3, 2, 5), "elu"), Shape5(1, 200, 4, 19, 57)),
    ],
    "max_pooling": [(Pool("pool", Vec3(2, 3, 2)), Shape5(2, 3, 5, 31, 39))],
    "max_pooling_fragments": [
        (Pool("pool", Vec3(2, 3, 2)), Shape5(2, 3, 5, 32, 39)),
        (Pool("wide", Vec3(1, 1, 7)), Shape5(1, 2, 3, 4, 41)),
    ],
}


@pytest.fixture(scope="module")
def copy() -> Callable[[Float32, Float32, int, int], None]:
    @lazy_njit()
    def copy(source, target, start, count):  # type: ignore[no-untyped-def]
        stream(source, target, start, count)

    return copy


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 33, 100])
def test_exactly_what_is_asked_for_is_copied(
    copy: Callable[[Float32, Float32, int, int], None], count: int
) -> None:
    source = np.arange(1, count + 1, dtype=np.float32)
    for start in range(17):
        target = np.zeros(count + 40, np.float32)
        copy(source, target, start, count)
        np.testing.assert_array_equal(target[start : start + count], source)
        assert np.count_nonzero(target) == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer", "shape"),
    [(name, layer, shape) for name, cases in LAYERS.items() for layer, shape in cases],
    ids=lambda value: getattr(value, "name", None),
)
def test_streamed_output_is_the_stored_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str, layer: Layer, shape: Shape5
) -> None:
    primitive, case = catalogue(machine)[name], random_case(layer, shape)
    stored, streamed = (run(case, primitive, monkeypatch, least) for least in (2**62, 0))
    np.testing.assert_array_equal(streamed, stored)


def run(case: Case, primitive: Primitive, monkeypatch: pytest.MonkeyPatch, least: int) -> Float32:
    """Return the output, streamed if it has at least so many bytes."""
    monkeypatch.setattr(streaming, "STREAMED_BYTES", least)
    return case.run(primitive)
