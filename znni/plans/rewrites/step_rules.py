"""All rules for steps that take or make packed values, in the order in which they are tried."""

from __future__ import annotations

from znni.plans.rewrites.left_norm import LeftNorm
from znni.plans.rewrites.step_rule import StepRule
from znni.plans.rewrites.summing_norm import SummingNorm

RULES: tuple[StepRule, ...] = (SummingNorm(), LeftNorm())
