"""The GPU on which layers of packed values are tested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

import pytest
from emulated_gpu import EMULATED, ORDERS, emulated_gpu, needs_emulation

from znni.machine.detect import detect_machine
from znni.machine.machine import Device
from znni.primitives.gpu.common.hardware import AMPERE

orders = cycle(ORDERS)


@pytest.fixture(
    params=[
        pytest.param("emulated", marks=needs_emulation),
        pytest.param("own", marks=pytest.mark.gpu),
        pytest.param("as 8.0", marks=pytest.mark.gpu),
    ]
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The emulated GPU, the first one that is there, or that with the kernels of older ones."""
    if request.param == "emulated":
        with emulated_gpu(next(orders)):
            yield EMULATED
    else:
        there = detect_machine().gpus[0]
        yield there if request.param == "own" else replace(there, capability=AMPERE.capability)
