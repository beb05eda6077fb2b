"""Programs: loops whose runs make each voxel of a patch once, and views that lie in the arena."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from random_networks import networks
from random_plans import any_plan

from znni.core.shapes import Vec3, offsets
from znni.network.network import Network
from znni.plans.fragments import ONE, ZERO, Positions, positions_after
from znni.plans.program import Program, program_of


def results(program: Program, level: int, given: Positions) -> list[Positions]:
    """Return the positions of all results of the last loop, in order."""
    if level == len(program.loops):
        return [given]
    loop, found = program.loops[level], []
    for items in loop.batches(len(given.at)):
        for chosen in loop.choices():
            made = positions_after(loop.segment, Positions(given.at[items], given.stride), chosen)
            found += results(program, level + 1, made)
    return found


@given(st.data(), networks())
def test_loops_make_each_voxel_of_a_patch_once(data: st.DataObject, network: Network) -> None:
    patch = network.total_pooling
    plan = any_plan(data.draw, network, patch * Vec3(2, 1, 2), patch * Vec3(2, 1, 2), "auto")
    found = Positions((ZERO,), ONE)
    for part in plan.parts:
        program = program_of(network, part, 1, 0)
        assert [each.step for each in program.steps] == list(part.steps)
        made = results(program, 0, found)
        found = Positions(tuple(at for each in made for at in each.at), made[0].stride)
    last = plan.steps[-1].shape_out.size
    voxels = Counter(
        start + found.stride * offset for start in found.at for offset in offsets(last)
    )
    assert voxels == Counter(offsets(plan.patch))


@given(st.data(), networks())
def test_arrays_and_workspace_of_a_step_do_not_overlap(
    data: st.DataObject, network: Network
) -> None:
    patch = network.total_pooling
    plan = any_plan(data.draw, network, patch, patch, "auto")
    for part in plan.parts:
        program = program_of(network, part, 64, 64)
        for placed in program.steps:
            spans = [
                (array.start, array.start + array.shape.nbytes)
                for name in {view.array for view in (*placed.reads, placed.writes)}
                if (array := program.arrays.get(name)) and array.start != placed.late_at
            ]
            spans = sorted([*spans, placed.room])
            assert all(one[1] <= other[0] for one, other in pairwise(spans))
            assert spans[0][0] >= 0
            assert spans[-1][1] <= program.size
