"""Plans as JSON: written without the schema that reads them, and the same as it would write."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from fakes import machine
from paths import NETWORKS
from pydantic import TypeAdapter
from small_search import CATALOGUE, LIMIT, NETWORK, OUTPUT, OVERHEAD

import znni
from planner.search import Search
from znni.plans import plan as plan_module
from znni.plans.plan import Plan


@pytest.fixture
def plan() -> Plan:
    found = Search(NETWORK, OUTPUT, machine(LIMIT), CATALOGUE, OVERHEAD).fastest()[0]
    network = replace(found.network, weights=Path("a folder") / "wéights.npz", labels=(("a", 1),))
    return replace(found, network=network)


def test_a_plan_is_written_without_the_schema_that_reads_it(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_read = TypeAdapter(Plan).dump_json(plan, by_alias=True).decode()
    monkeypatch.setattr(plan_module, "_adapter", lambda: pytest.fail("the schema was made"))
    expected = json.loads(as_read)
    for device in (expected["machine"]["host"], *expected["machine"]["gpus"]):
        assert device.pop("backend") == ""  # only the name of another package's is written
    assert expected.pop("slowdown") == 1.0  # only another one is written
    assert expected["network"].pop("is_swept") is False  # only a sweep's has it
    assert expected["network"].pop("sweep_axis") == "z"  # only another one is written
    assert json.loads(plan.to_json()) == expected


def test_a_plan_that_was_written_is_read(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.network.weights == plan.network.weights
    assert again.to_json() == plan.to_json()


@pytest.mark.slow
def test_a_whole_number_is_written_as_it_is_when_it_was_read() -> None:
    """So a run has the same output by a plan that was just made and by one from a file."""
    found = znni.search(
        NETWORKS / "boundaries.yaml", (150, 160, 170), machine="rtx4090", device="gpu"
    ).fastest()[0]
    assert any(isinstance(step.cost.bytes_moved, int) for step in found.steps)
    text = found.to_json()
    assert Plan.from_json(text).to_json() == text


def test_a_number_without_end_is_null(plan: Plan) -> None:
    steps = plan.segments[0].steps
    endless = replace(plan.segments[0], steps=(replace(steps[0], error=inf), *steps[1:]))
    written = json.loads(replace(plan, segments=(endless, *plan.segments[1:])).to_json())
    assert written["segments"][0]["steps"][0]["error"] is None
