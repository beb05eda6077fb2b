"""Steps to choose from, of random times and memory, for tests of choices within a memory limit."""

from __future__ import annotations

from math import inf

from hypothesis import strategies as st

from planner.choices import Slot
from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Conv
from znni.plans.cost import Cost, Memory
from znni.plans.segments import Step

CONV = Conv("conv", 1, 1, Vec3(1, 1, 1), "relu")
SHAPE = Shape5(1, 1, 1, 1, 1)


@st.composite
def slots(draw: st.DrawFn, *, using_gpu: bool = False) -> list[Slot]:
    """Return slots; if they use a GPU, steps take bytes there, and together have a limit."""
    numbers = st.integers(0, 9)
    there = numbers if using_gpu else st.just(0)
    on_gpu = draw(st.integers(0, 40)) if using_gpu else inf
    made = []
    for _ in range(draw(st.integers(1, 6))):
        figures = draw(
            st.lists(
                st.tuples(st.integers(1, 9), numbers, numbers, there, there),
                min_size=1,
                max_size=5,
            )
        )
        steps = [
            Step(CONV, "any", SHAPE, SHAPE, Cost(1, 1, memory, 1), time, 0.1)
            for time, res, work, *gpu in sorted(figures)
            for memory in [Memory(res, work, work, *gpu)]
        ]
        made.append(Slot(tuple(steps), draw(st.integers(1, 3)), draw(numbers), on_gpu=on_gpu))
    return made
