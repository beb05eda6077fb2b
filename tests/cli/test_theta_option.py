"""``--theta``: the user chooses how many first layers are on the host."""

from __future__ import annotations

import pytest
from command_line import refused, succeeds

import znni
from znni.core.errors import InvalidInput
from znni.plans.plan import Plan

PLAN = ("plan", "--net", "n337", "--volume", "150,150,150", "--machine", "titanx-e7")


@pytest.mark.slow_cases
@pytest.mark.parametrize("theta", [0, 2, 10])
def test_plans_have_as_many_layers_on_the_host(theta: int) -> None:
    plan = Plan.from_json(succeeds(*PLAN, "--theta", str(theta), "--json"))
    assert plan.layers_on_host == theta
    assert plan.is_split == (0 < theta < 10)
    assert znni.plan("n337", (150,) * 3, machine="titanx-e7", theta=theta) == plan


def test_a_number_of_layers_that_no_plan_has_is_refused() -> None:
    assert "may have 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 layers on the host" in refused(
        *PLAN, "--theta", "11"
    )
    assert "--device gpu, network n337 may have 0 layers" in refused(
        *PLAN, "--theta", "2", "--device", "gpu"
    )
    with pytest.raises(InvalidInput, match="theta is '2', a str; give an integer"):
        znni.plan("n337", (150,) * 3, machine="titanx-e7", theta="2")  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_explanation_says_why_no_layers_are_split() -> None:
    said = succeeds(*PLAN, "--device", "auto", "--explain").splitlines()[-1]
    assert said.startswith("split         the best of those tried has its first ")
    assert said.endswith("of a patch's time")
