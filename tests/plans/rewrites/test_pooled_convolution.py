"""A convolution and its pooling as one step: plans, their files and their runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import fake_catalogue
from random_networks import chain
from random_plans import CATALOGUE, WORKSPACE, assert_dense, plan_of

from planner.bare_steps import bare_step
from planner.segmentations import segmentations
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.engine.checks import check_runnable
from znni.network.layers import Conv, Pool, PooledConv
from znni.network.node import INPUT
from znni.plans.plan import Plan
from znni.plans.primitive import on_device
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.segments import Segment, Step

NETWORK = chain(("conv", 2), ("pool", 2), ("conv", 2), ("pool", (1, 3, 2)), ("conv", 2))
ON_HOST = on_device(CATALOGUE, "cpu")


def test_every_division_with_a_fused_step() -> None:
    patch = NETWORK.total_pooling
    given = Shape5.of(1, 1, patch + NETWORK.field_of_view - 1)
    found = set()
    fusible = tuple(fusions(NETWORK).values())
    for segments in segmentations(NETWORK.nodes, given, fusible=fusible):
        names = tuple(step.operation.name for part in segments for step in part.steps)
        if len(names) < len(NETWORK.layers):
            assert_dense(NETWORK, plan_of(segments, NETWORK, patch, patch))
            found.add(names)
    assert found == {
        ("l0+l1", "l2", "l3", "l4"),
        ("l0", "l1", "l2+l3", "l4"),
        ("l0+l1", "l2+l3", "l4"),
    }


def test_a_fused_step_amid_its_segment() -> None:
    """A segment gives the same whatever comes before what it pools."""
    network = chain(("conv", 2), ("conv", 2), ("pool", 2), ("conv", 2))
    patch = Vec3(2, 4, 2)
    first, conv, pool, last = network.layers
    assert isinstance(conv, Conv)
    assert isinstance(pool, Pool)
    shape = Shape5.of(1, 1, patch + network.field_of_view - 2)
    steps: list[Step] = []
    for layer in (first, PooledConv(conv, pool), last):
        takes = (steps[-1].gives if steps else INPUT,)
        (out,) = filter(None, (primitive.out_shape(layer, shape) for primitive in ON_HOST.values()))
        steps.append(bare_step(layer, shape, out, takes))
        shape = out
    plan = plan_of((Segment("cpu", 1, tuple(steps)),), network, patch, patch)
    step, held = next(plan.parts[0].held_beside())
    in_place = plan.input_shape.nbytes + steps[0].shape_out.nbytes + WORKSPACE
    assert held + step.cost.memory.working == in_place, "the stored input is read where it is"
    assert_dense(network, plan)


def test_a_fused_step_survives_json_and_a_tampered_one_does_not() -> None:
    network = chain(("conv", 2), ("pool", 2), ("conv", 2), features=9)
    (pair,) = fusible = tuple(fusions(network).values())
    patch = network.total_pooling
    given = Shape5.of(1, 1, patch + network.field_of_view - 1)
    every = segmentations(network.nodes, given, fusible=fusible)
    (fused,) = (segments for segments in every if segments[0].steps[0].operation == pair.operation)
    plan = plan_of(fused, network, patch, patch)
    text = plan.to_json()
    again = Plan.from_json(text)
    assert again == plan
    assert again.segments[0].steps[0].operation == pair.operation
    check_runnable(again, CATALOGUE)
    with pytest.raises(InvalidInput, match="'fused', which this machine does not have"):
        check_runnable(again, fake_catalogue())
    before, after = text.split('"segments"')
    for old, new in (('"l1"', '"lx"'), ('"out_features": 9', '"out_features": 8')):
        with pytest.raises(InvalidInput, match="not its network's layers"):
            Plan.from_json(before + '"segments"' + after.replace(old, new, 1))
    unpooled = after.replace('"primitive": "fused"', '"primitive": "conv"')
    with pytest.raises(InvalidInput, match=r"l0\+l1 does not turn .* into .* with conv"):
        check_runnable(Plan.from_json(before + '"segments"' + unpooled), CATALOGUE)
    step = plan.segments[0].steps[0]
    all_fragments = replace(step, shape_out=step.shape_out._replace(n=8))
    segment = replace(plan.segments[0], steps=(all_fragments, *plan.segments[0].steps[1:]))
    with pytest.raises(InvalidInput, match=r"l0\+l1"):
        check_runnable(replace(plan, segments=(segment,)), CATALOGUE)
