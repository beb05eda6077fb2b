"""The patch sizes that are tried for an output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.patch_sizes import FINEST_STEP, axis_sizes, patch_sizes, patch_sizes_near, spread
from znni.core.shapes import Vec3


@given(st.integers(1, 400), st.integers(1, 12))
def test_axis_sizes_are_the_smallest_for_their_number_of_patches(output: int, pool: int) -> None:
    sizes = axis_sizes(output, pool)
    assert sizes[0] >= output > sizes[0] - pool
    assert sizes[-1] == pool
    for size in sizes:
        assert size % pool == 0
        count = -(-output // size)
        assert size == pool or -(-output // (size - pool)) > count


@given(st.lists(st.integers(1, 10**5), min_size=1, unique=True))
def test_a_spread_of_sizes_leaves_none_far_from_one_kept(sizes: list[int]) -> None:
    sizes.sort(reverse=True)
    kept = spread(sizes)
    assert {sizes[0], sizes[-1]} <= set(kept) <= set(sizes)
    for size in sizes:
        assert any(size <= other < size * (1 + FINEST_STEP) for other in kept)


def test_sizes_near_a_patch_hold_it_and_the_ones_left_out_beside_it() -> None:
    output, pooling = Vec3(4000, 4000, 4000), Vec3(8, 4, 4)
    tried = set(patch_sizes(output, pooling, isotropic=False))
    assert len(tried) < len(axis_sizes(4000, 8)) * len(axis_sizes(4000, 4)) ** 2 / 2
    patch = Vec3(*(min(sizes, key=lambda s: abs(s - 160)) for sizes in zip(*tried, strict=True)))
    near = set(patch_sizes_near(patch, output, pooling))
    assert patch in near
    assert patch + Vec3(8, 0, 0) in near
    assert patch - Vec3(0, 4, 4) in near
