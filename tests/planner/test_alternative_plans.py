"""Several plans for one job: found under limits and restrictions, ranked, saved and run."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import read_main, refused, succeeds
from fakes import machine
from small_search import CATALOGUE, LIMIT, NETWORK, OUTPUT, OVERHEAD, small_search

from planner.search import Search
from znni.core.errors import InvalidInput
from znni.plans.plan_file import load_plan
from znni.plans.plan_text import ranking

PLAN = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")


@pytest.fixture(scope="module")
def search() -> Search:
    return small_search()


def test_a_search_under_another_limit_leaves_the_first_as_it_was(search: Search) -> None:
    before = search.fastest()
    tight = search.within(20_000).fastest()[0]
    assert tight.memory.total <= 20_000 < before[0].memory.total
    assert search.fastest() == before


@pytest.mark.slow
def test_a_search_among_some_plans_finds_those(search: Search) -> None:
    some = {"direct", "lowered_whole", "pool", "fragments"}
    few = {name: CATALOGUE[name] for name in some}
    for limit in (20_000, 60_000, LIMIT):
        found = search.within(limit).among(some).fastest(3)
        alone = Search(NETWORK, OUTPUT, machine(limit), few, OVERHEAD).fastest(3)
        assert [one.seconds for one in found] == [one.seconds for one in alone]
        whole = search.within(limit).undivided().fastest()[0]
        of_none = Search(NETWORK, OUTPUT, machine(limit), CATALOGUE, OVERHEAD, division="none")
        assert whole == of_none.fastest()[0]
        assert {step.primitive for step in whole.steps} <= set(CATALOGUE)


def test_no_plans_are_not_asked_for(search: Search) -> None:
    with pytest.raises(InvalidInput, match="ask for 1 or more"):
        search.fastest(0)


def test_a_ranking_tells_how_each_plan_differs_from_the_first(search: Search) -> None:
    plans = search.fastest(6)
    header, first, *others = ranking(plans).splitlines()
    columns = "rank patch patches voxels/s +- of best memory wasted how"
    assert " ".join(header.split()) == columns
    assert first.split()[:2] == ["1", str(plans[0].patch)]
    assert first.endswith("  as above")
    assert " 100.0%  " in first
    for rank, (line, plan) in enumerate(zip(others, plans[1:], strict=True), start=2):
        assert line.split()[:2] == [str(rank), str(plan.patch)]
        share = plan.voxels_per_second / plans[0].voxels_per_second
        assert f" {share:.1%}  " in line
    tight, roomy = search.within(20_000).fastest()[0], plans[0]
    told = ranking([roomy, tight]).splitlines()[-1]
    for step in tight.steps:
        if step.primitive not in {one.primitive for one in roomy.steps}:
            assert f"{step.primitive} in " in told or f"{step.primitive}, " in told
    same = ranking([roomy, roomy]).splitlines()[-1]
    assert same.endswith("  the same in other patches")


@pytest.mark.usefixtures("fake_primitives")
def test_alternatives_are_ranked_saved_and_run(small_case: Path) -> None:
    table, ranked = succeeds(*PLAN, "--alternatives", 3, "--out", "plan.json").split("\n\n")
    assert "conv1" in table
    assert [line.split()[0] for line in ranked.splitlines()] == ["rank", "1", "2", "3"]
    files = ["plan.json", "plan-2.json", "plan-3.json"]
    plans = [load_plan(small_case / name) for name in files]
    assert sorted(path.name for path in small_case.glob("plan*")) == sorted(files)
    assert [plan.seconds for plan in plans] == sorted(plan.seconds for plan in plans)
    assert len({plan.patch for plan in plans}) == 3
    outputs = []
    for name in files:
        succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--plan", name, "--out", f"{name}.h5")
        outputs.append(read_main(f"{name}.h5"))
    assert outputs[0].std() > 0
    for output in outputs[1:]:
        assert abs(output - outputs[0]).max() < 1e-5
    assert "0 is less than 1" in refused(*PLAN, "--alternatives", 0)
