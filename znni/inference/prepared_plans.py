"""Prepared plans that are kept, and the memory of other work beside them."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Condition, Lock, get_ident

from znni.core.plan_options import Choices
from znni.core.processors import GPU, HOST, DeviceKind, has_own_memory
from znni.engine.pipeline import PreparedPlan, Turn
from znni.inference.plan_choice import machine_here
from znni.inference.turns import Turns
from znni.network.network import Network
from znni.plans.plan import Plan

Prepare = Callable[[Plan], PreparedPlan]


class PreparedPlans:
    """Prepared plans that are kept. All of them count towards the memory allowed.

    The plan that was used longest ago is released first. Threads run plans in turn. Other threads
    may take memory beside them, and wait until there is enough.

    Args:
        choices: the limits for all plans together.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._allowed: dict[DeviceKind, int] = {}
        self._kept: OrderedDict[Hashable, PreparedPlan] = OrderedDict()
        self._beside = 0  # bytes of the host that other work takes
        self._running: dict[int, Hashable] = {}  # by thread, what a run uses; None: nothing yet
        self._used = False
        self._changed = Condition()
        self._turns = Turns(self._changed)
        self._building = Lock()

    def get(self, plan: Plan, kind: Hashable, prepare: Prepare) -> PreparedPlan:
        """Return a plan, prepared, after releasing what does not fit beside it.

        Args:
            kind: differs for equal plans that are prepared otherwise, as with other weights.
            prepare: prepares the plan, unless it is kept.
        """
        key, thread = (prepared_as(plan), kind), get_ident()
        self._end_building()
        with self._changed:
            if thread in self._running:
                self._running[thread] = None  # it uses no plan that ran out of memory any more
                self._turns.end(thread, "finishing")
                # If the run before runs out of memory, it goes on with another plan. That may not
                # wait for this run. So this run takes no memory before the other is done.
                if not (key in self._kept and self._fits(plan, key)):
                    self._turns.begin(thread, "computing", "finishing")
            if key in self._kept:  # its memory counts while this waits
                self._kept.move_to_end(key)
            else:
                self.look_up_limits()
            if thread in self._running:
                self._running[thread] = key
            while not self._fits(plan, key):
                in_use = {key, *self._running.values()}
                unused = [kept for kept in self._kept if kept not in in_use]
                if unused:
                    del self._kept[unused[0]]
                elif self._beside or len(in_use & self._kept.keys() - {key}):
                    self._changed.wait()
                else:
                    break
            if key not in self._kept:
                self._kept[key] = prepare(plan)
            return self._kept[key]

    def take(self, plan: Plan, kind: Hashable, prepare: Prepare) -> PreparedPlan:
        """Return a plan, prepared, which is kept no longer. All others are released."""
        self._end_building()
        found = self._kept.pop((prepared_as(plan), kind), None)
        self._kept.clear()
        return prepare(plan) if found is None else found

    def build_ahead(self, plan: Plan, kind: Hashable, prepare: Prepare, allowed: int) -> None:
        """Make the plan of the first run ready, if it fits beside the other work.

        If that raises an error, the run raises it again.

        Args:
            kind: as for ``get``.
            prepare: as for ``get``.
            allowed: the bytes of the host that may be taken in all.
        """
        with self._building:
            with self._changed:
                fits = plan.memory.total + self._beside <= allowed
                if self._used or self._kept or plan.workers > 1 or not fits:
                    return
                found = self._kept[prepared_as(plan), kind] = prepare(plan)
            found.wait_until_ready()

    def _end_building(self) -> None:
        """Wait for the plan that is built ahead, if there is one. None is built afterwards."""
        with self._building:
            self._used = True

    @contextmanager
    def running(self) -> Iterator[Turn]:
        """Run a plan within a ``with`` block, after the run before has read all its blocks.

        The plan is not released for other work meanwhile.

        Yields:
            The turn of the run. The end of the block ends the turn.
        """
        thread = get_ident()

        begin, end = self._turns.begin, self._turns.end
        computed = partial(end, thread, "reading", "computing", "finishing")
        try:
            with self._changed:
                begin(thread, "reading")
                self._running[thread] = None
            yield Turn(
                wait_to_compute=partial(begin, thread, "computing"),
                wait_to_finish=partial(begin, thread, "finishing"),
                all_read=partial(end, thread, "reading"),
                finishing=partial(end, thread, "reading", "computing"),
                computed=computed,
            )
        finally:
            computed()
            with self._changed:
                self._running.pop(thread, None)
                self._changed.notify_all()

    @contextmanager
    def taking(self, nbytes: int, process: int, allowed: int) -> Iterator[None]:
        """Take memory of the host for other work within a ``with`` block.

        This waits for further work first. Then plans that are kept are released, the oldest first.
        If that is not enough, it waits for the plan that runs. Work never waits if it is alone.

        Args:
            nbytes: the bytes of the work.
            process: the bytes of the process beside it.
            allowed: the bytes that may be taken in all.
        """
        with self._changed:
            while process + nbytes + self.held(HOST) + self._beside > allowed:
                unused = [kept for kept in self._kept if kept not in self._running.values()]
                if self._beside:
                    self._changed.wait()
                elif unused:
                    del self._kept[unused[0]]
                    gc.collect()
                elif self._running:
                    self._changed.wait()
                else:
                    break
            self._beside += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._beside -= nbytes
                self._changed.notify_all()

    def clear(self) -> None:
        """Release all kept plans but those that runs use."""
        with self._changed:
            used = self._running.values()
            self._kept = OrderedDict((key, it) for key, it in self._kept.items() if key in used)
            self._changed.notify_all()
        gc.collect()  # tracebacks may still refer to it

    def look_up_limits(self) -> dict[DeviceKind, int]:
        """Return the memory allowed now, of which kept plans take a part.

        It never grows while plans are kept, because plans made before stay within it.
        """
        here = machine_here(self._choices)
        with self._changed:
            if self._kept:
                left = here.host.memory + self.held(HOST)
                self._allowed[HOST] = min(self._allowed[HOST], left)
            else:
                on_gpu = here.gpus[0].memory if here.gpus else 0
                self._allowed = {HOST: here.host.memory, GPU: on_gpu}
            return self._allowed

    def held(self, device: DeviceKind) -> int:
        """Return the bytes of a device that the kept plans take."""
        with self._changed:
            return _idle_in_all((kept.plan for kept in self._kept.values()), device)

    def _fits(self, plan: Plan, key: Hashable) -> bool:
        """Return whether a plan runs within the memory allowed, beside all else."""
        others = [kept.plan for own, kept in self._kept.items() if own != key]
        on_gpu = plan.gpu_memory.total if plan.gpu_memory else 0
        on_host = plan.memory.total + _idle_in_all(others, HOST) + self._beside
        fits_gpu = on_gpu + _idle_in_all(others, GPU) <= self._allowed[GPU]
        return on_host <= self._allowed[HOST] and fits_gpu


def _idle_in_all(plans: Iterable[Plan], device: DeviceKind) -> int:
    """Return the most bytes that prepared plans take, beside the process and the weights."""
    return sum(_idle_memory(plan, device) for plan in plans)


def _idle_memory(plan: Plan, device: DeviceKind) -> int:
    """Return the most bytes that a plan made ready takes, beside the process and the weights."""
    if has_own_memory(device):
        return plan.gpu_memory.total if plan.gpu_memory else 0
    memory = plan.memory
    if plan.workers > 1:  # its processes have weights of their own
        return memory.total
    return memory.total - memory.process - memory.weights


def prepared_as(plan: Plan) -> Hashable:
    """Return a value that is equal for plans that one of them, prepared, can run."""
    network, host = without_statistics(plan.network), plan.machine.host
    gpus = tuple(gpu.number for gpu in plan.machine.gpus[: plan.workers])
    return network, plan.computation, host.threads, gpus, plan.time.in_turn


def without_statistics(network: Network) -> Network:
    """Return a network without what depends on the values of one volume."""
    if not network.scaling.statistics:
        return network
    return replace(network, scaling=replace(network.scaling, statistics=()))
