"""Plans that are damaged, for another run, or inconsistent are refused before the run starts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import refused_without_trace, rewrite, succeeds, voxels, write_volume

from znni.plans.plan import Plan

INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--plan", "plan.json", "--out", "out.h5")
MAKE = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--out", "plan.json")


pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "nothing_partial")


def refused(*arguments: object) -> str:
    """Return the one-line error of a run that must fail and leave every file unchanged."""
    return refused_without_trace(*INFER, *arguments)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\xff", '{"network": 3}'])
def test_a_plan_that_is_none(text: str) -> None:
    Path("plan.json").write_text(text, encoding="latin-1")
    message = refused()
    assert message.startswith("plan.json: not a plan")
    assert message.endswith("; plan again with znni plan --out")


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ('"patch": [', '"patch": [0, 1, 1], "x": ['),
        ('"output": [', '"output": [-1, 1, 1], "x": ['),
        ('"sub_batch": 1', '"sub_batch": 0'),
        ('"sub_batch": 1', '"sub_batch": 7'),
        ('"seconds": ', '"seconds": 1e999, "x": '),
        ('"primitive": "', '"primitive": "no'),
        ('"name": "conv1"', '"name": "conv7"'),
        ('"kernel": [', '"kernel": [0, 1, 1], "x": ['),
        ('"in_features": 1', '"in_features": 0'),
        ('"threads": ', '"threads": 0, "x": '),
        ('"read": ', '"read": 0, "x": '),
        ('"flops": ', '"flops": -1, "x": '),
        ('"pairs_per_cycle": ', '"pairs_per_cycle": 0, "x": '),
        ('"device": "cpu"', '"device": "tpu"'),
        ('"segments": [', '"segments": [], "x": ['),
        ('"blocks": ', '"working": 1, "blocks": '),
        ('"working": ', '"working": 1'),
    ],
)
def test_a_plan_that_was_tampered_with(part: str, broken: str) -> None:
    succeeds(*MAKE)
    text = Path("plan.json").read_text().replace("\n", "").replace('": ', '":').replace('":', '": ')
    assert part in text
    Path("plan.json").write_text(text.replace(part, broken, 1))
    assert "plan" in refused()


def test_a_plan_of_another_network_or_machine() -> None:
    succeeds(*MAKE)
    assert "1 MiB are allowed" in refused("--ram", "1MiB")
    assert re.search(r"not 77; give --threads \d+, or", refused("--threads", 77))
    rewrite("tiny.yaml", "sigmoid", "tanh")
    assert "the plan is for network tiny, as it was then" in refused()
    assert "as it was then" in refused("--dry-run")


def save_plan(change: Callable[[dict[str, Any]], object]) -> int:
    """Save a changed plan for the volume; return the memory that the unchanged one needs."""
    succeeds(*MAKE)
    text = Path("plan.json").read_text()
    document = json.loads(text)
    change(document)
    Path("plan.json").write_text(json.dumps(document))
    return Plan.from_json(text).memory.total


def test_a_plan_that_makes_light_of_its_memory() -> None:
    needed = save_plan(lambda plan: plan["memory"].update(process=0, weights=0, blocks=0))
    assert "are allowed; give --ram " in refused("--ram", needed - 1)
    assert "are allowed; give --ram " in refused("--ram", needed - 1, "--dry-run")
    succeeds(*INFER, "--ram", needed)


def test_a_plan_for_smaller_types() -> None:
    """The memory is that of this run's types, not of the plan's."""
    succeeds(*MAKE, "--dtype", "float16")
    ram = Plan.from_json(Path("plan.json").read_text()).memory.total
    assert "are allowed; give --ram " in refused("--ram", ram)
    assert "are allowed; give --ram " in refused("--ram", ram, "--dry-run")
    succeeds(*INFER, "--ram", ram, "--dtype", "float16")
    write_volume(voxels(dtype="float64"))
    again = ("--dtype", "float16", "--overwrite")
    assert "are allowed; give --ram " in refused("--ram", ram, *again)


def test_a_plan_for_a_gpu() -> None:
    save_plan(lambda plan: plan["segments"][0].update(device="gpu"))
    assert "does not say which device its layers run on" in refused()


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan["segments"][0]["steps"][0].pop("takes"),
        lambda plan: plan["segments"][-1]["steps"][-1].update(takes=["x"]),
        lambda plan: plan["segments"][-1]["steps"][-1].update(takes=[""]),
        lambda plan: plan["network"]["nodes"][1].update(inputs=[]),
        lambda plan: plan["network"]["nodes"][1].update(inputs=["conv1", "conv1"]),
        lambda plan: plan["network"].update(output="x"),
        lambda plan: plan["segments"][0]["steps"][0].update(primitive={"pieces": []}),
        lambda plan: plan["segments"][0]["steps"][0].update(
            primitive={"pieces": [{"times": 0, "items": 1, "primitive": "conv"}]}
        ),
    ],
)
def test_a_plan_whose_graph_was_tampered_with(change: Callable[[dict[str, Any]], object]) -> None:
    save_plan(change)
    assert "plan" in refused()


@pytest.mark.parametrize("more", [512, -1])
def test_a_plan_of_another_processor_may_promise_more_memory_than_is_taken_here(more: int) -> None:
    succeeds(*MAKE)
    plan = json.loads(Path("plan.json").read_text())
    for segment in plan["segments"]:
        for step in segment["steps"]:
            for part in ("working", "workspace"):
                step["cost"]["memory"][part] = max(0, step["cost"]["memory"][part] + more)
    plan["memory"]["working"] += more
    Path("plan.json").write_text(json.dumps(plan))
    if more > 0:
        succeeds(*INFER)
    else:
        assert "but it takes Memory(" in refused()
