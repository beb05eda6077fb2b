"""Several emulated GPUs, each in a process of its own, as workers have real ones."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from emulated_gpu import EMULATED, Memory, emulated_gpu
from emulated_plans import MACHINE, primitives
from fleet_cases import fleet_of

from znni.core.option_types import OutputType
from znni.engine.executor import not_measured
from znni.engine.patch_runner import PatchRunner
from znni.engine.workers import serving
from znni.engine.workers.fleet import Fleet
from znni.inference import plan_choice, planning, session
from znni.inference.planning import shared_out
from znni.machine.machine import Machine
from znni.network.weights import Weights
from znni.plans.plan import Plan
from znni.plans.stored_values import AS_COMPUTED, Stored

GPUS = 2
THERE = replace(MACHINE, gpus=(EMULATED,) * GPUS)

_held = ExitStack()  # the emulation of a worker's process, which lasts as long as the process


def _taken() -> int:
    return Memory.taken


def prepare_emulated(plan: Plan, weights: Weights, dtype: OutputType) -> PatchRunner:
    """Prepare a plan on the emulated GPU of this process."""
    _held.enter_context(emulated_gpu())
    _held.enter_context(mock.patch.object(serving, "device_peak", _taken))
    return PatchRunner(plan, primitives(), weights, dtype=dtype)


def workers_of(
    plan: Plan,
    weights: Weights,
    _measured: Any = not_measured,
    stored: Stored = AS_COMPUTED,
    _waiting: None = None,
) -> Fleet:
    """Return one worker for each GPU of a plan, also if there is one."""
    network = shared_out(plan.network, plan.workers)
    alone = replace(plan, network=network, machine=replace(MACHINE, gpus=(EMULATED,)))
    prepare = partial(prepare_emulated, alone, weights, dtype=stored.dtype)
    return fleet_of(prepare, plan.workers, plan, stored)


def use_emulated_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have emulated GPUs for plans, sessions and cases."""

    def found(*_: Any) -> Machine:
        return THERE

    monkeypatch.setattr(plan_choice, "detect_for", found)
    monkeypatch.setattr(plan_choice, "_warn_beyond_available", lambda *_: None)
    monkeypatch.setattr(planning, "machine_for", found)
    monkeypatch.setattr(planning, "catalogue", lambda *_, **__: primitives())
    monkeypatch.setattr(session, "prepare", workers_of)
    monkeypatch.setattr(session, "several_waiting", lambda _: None)
    there = SimpleNamespace(check=lambda: None)
    monkeypatch.setattr("znni.cases.network_runs.backend_of", lambda _: there)
