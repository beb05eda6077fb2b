"""A whole volume through a plan: blocks are read, computed and written at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import count, repeat
from statistics import fmean
from threading import Lock
from typing import Any, NamedTuple, Protocol

from znni.core.trace import span
from znni.core.volume import Action
from znni.engine.backends.registry import backend_of
from znni.engine.block import Block, ComputeStage
from znni.engine.labels import Labels
from znni.engine.last_blocks import LastBlocks, Passing
from znni.engine.run_state import RunState
from znni.engine.shares import Shares
from znni.engine.stage_chain import (
    ChainThreads,
    Over,
    StageChain,
    Work,
    in_turn,
    nothing_to_do,
    passing_items,
)
from znni.engine.stages.stage_order import works
from znni.engine.stopwatch import SharedStopwatch, Stopwatch
from znni.engine.tiles import Allocate, Tile, allocate_new
from znni.engine.timeline import CAN_COMPUTE, Timeline
from znni.machine.cold_pages import note_warm
from znni.plans.job_seconds import ReportStage
from znni.plans.plan import Plan


class PatchStages(Protocol):
    """A plan made ready in one process. It gives the stages that compute patch after patch."""

    @property
    def plan(self) -> Plan:
        """The plan that it runs."""

    def stages(self, stopwatch: Stopwatch, labels: Labels | None = None) -> Sequence[ComputeStage]:
        """Return the stages of a block, in order. The first one runs in the thread of the caller.

        Each takes a block and returns its new values. The last one returns the dense output
        (f', Z, Y, X), in float32 or as it is stored, or its labels in their type. A stage begins
        a block only when the next stage has taken its previous one.

        Args:
            stopwatch: counts how long each stage works.
            labels: how values become labels. A runner that makes none returns the values.
        """


class BlockSlot(NamedTuple):
    """A place for blocks, one after another: where each is read to, and what computes it.

    Attributes:
        stages: returns the stages that compute a block, once the process is ready.
        allocate: gives the array that a block is read into.
        one_at_a_time: whether the slot takes the next block when one is written. Else its stages
            work at the same time, each on a block of its own.
        free: begins to give the memory of the slot back. A slot with ``one_at_a_time`` calls it
            after its last block is written, if no run follows.
    """

    stages: Callable[[], Sequence[ComputeStage]]
    allocate: Allocate = allocate_new
    one_at_a_time: bool = False
    free: Callable[[], None] = nothing_to_do


class Turn(NamedTuple):
    """The turn of a run, among runs that read and compute one after the other.

    If several stages compute a block, the next run begins its first block while the last stage
    computes this run's last block. It begins a second block only when that is done.

    Attributes:
        wait_to_compute: waits until the run before has computed all its blocks, or until only its
            last stage works.
        wait_to_finish: waits until the run before has computed all its blocks.
        all_read: called once all blocks are read. The next run may read its first block.
        finishing: called once the last of several stages has taken the last block.
        computed: called once all blocks are computed. The last ones may not be written yet.
    """

    wait_to_compute: Action = nothing_to_do
    wait_to_finish: Action = nothing_to_do
    all_read: Action = nothing_to_do
    finishing: Action = nothing_to_do
    computed: Action = nothing_to_do


ALONE = Turn()


class PreparedPlan(Protocol):
    """A plan that is prepared to compute a volume, in this process or in workers."""

    @property
    def plan(self) -> Plan:
        """The plan that it runs."""

    def block_slots(
        self, stopwatch: Stopwatch, labels: Labels | None = None
    ) -> Sequence[Sequence[BlockSlot]]:
        """Return the slots of each process. Blocks are read before it is ready.

        Args:
            stopwatch: learns how long each stage in this process works.
            labels: how values become labels, as for ``PatchStages.stages``.
        """

    def wait_until_ready(self) -> None:
        """Wait until all processes can compute, and raise the error of one that cannot."""

    def in_use(self, stopwatch: Stopwatch) -> AbstractContextManager[None]:
        """Let its processes compute within a ``with`` block. If it raises, they end at once.

        Args:
            stopwatch: counts how long each stage in other processes works, on average.
        """

    def leave(self, number: int) -> None:
        """Begin to end a process, unless it is this one: it has computed all its blocks.

        They may not be written yet. Other processes may be at work. No run follows.

        Args:
            number: the place of its slots among all.
        """

    def end(self) -> Callable[[], None]:
        """Begin to end all processes but this one. No run follows.

        Returns:
            A function that waits until they are gone.
        """

    @property
    def workers_memory(self) -> int:
        """The peak resident bytes of all processes but this one."""

    @property
    def gpu_peak_memory(self) -> int:
        """The most bytes of a GPU that arrays took."""


class PreparedHere:
    """A plan prepared in this process, which computes beside its reading and writing.

    Args:
        plan: the plan that it runs.
        make: makes the runner of patches, in the thread that waits until it is ready. Meanwhile
            another thread reads the first block.
        allocate: gives the array that a block is read into.

    Attributes:
        plan: the plan that it runs.
        workers_memory: none.
    """

    workers_memory = 0

    def __init__(
        self, plan: Plan, make: Callable[[], PatchStages], allocate: Allocate = allocate_new
    ) -> None:
        self.plan = plan
        self._runner = cache(make)
        self._allocate = allocate

    def block_slots(
        self, stopwatch: Stopwatch, labels: Labels | None = None
    ) -> list[list[BlockSlot]]:
        """Return one slot."""
        return [[BlockSlot(lambda: self._runner().stages(stopwatch, labels), self._allocate)]]

    def wait_until_ready(self) -> None:
        """Make the runner, unless an earlier run has made it.

        Raises:
            BaseException: what is raised as it is made. The next run makes it anew.
        """
        self._runner()

    @contextmanager
    def in_use(self, _stopwatch: Stopwatch) -> Iterator[None]:
        """Release the runner if memory runs out: the next run may wait, and hold this plan.

        The stages end by themselves, and tell the stopwatch of their slots.
        """
        try:
            yield
        except MemoryError:
            self._runner.cache_clear()
            raise

    def leave(self, number: int) -> None:
        """Do nothing: this process goes on."""

    def end(self) -> Callable[[], None]:
        """Do nothing: there are no others."""
        return nothing_to_do

    @property
    def gpu_peak_memory(self) -> int:
        """The most bytes of a GPU that arrays took."""
        return backend_of(self.plan.gpu).peak() if self.plan.gpu_memory else 0


def run_volume(
    state: RunState,
    prepared: PreparedPlan,
    stopwatch: Stopwatch,
    *,
    last: bool = False,
    turn: Turn = ALONE,
) -> None:
    """Compute what is left of a job block by block, and write each output voxel once.

    One block is read at a time for each process, and the blocks of a column in order (``Shares``).
    One block is written at a time. Reads share threads. So time in which several blocks are read
    counts once. A block whose output is known passes by the stages that compute. One slot writes
    its blocks in order; several slots write them in any order.

    An error in any thread ends the run and is raised as itself; of several errors the first is.
    Blocks that had passed the stage that failed, and those in other slots, are written first.

    Args:
        state: what is left of the job.
        prepared: computes the blocks.
        stopwatch: learns where the time goes.
        last: whether no run follows. Then each process ends while its last blocks are written.
        turn: the turn of this run. It reads its first block before. If other processes compute,
            blocks lie in their slots until they are written. So no run reads meanwhile, and none
            computes if there are several processes.
    """
    plan, writing, clocks = prepared.plan, Lock(), list[Stopwatch]()
    reads, timeline = SharedStopwatch(), Timeline()
    # ``work`` of the modules in ``stages/``, for each thread: ``blend.work``, then ``write.work``.
    after_layers = works(state, plan.network, "computing")
    to_output = in_turn(_timed(stopwatch, "writing", works(state, plan.network, "writing")))

    def write(block: Block) -> None:
        with writing:
            to_output(block)
            state.report_written(block.tile)

    def chain(process: int, slot: BlockSlot, reading: Lock) -> StageChain:
        clock = Stopwatch()
        clocks.append(clock)

        def read(_: None) -> Block:
            with reading:
                if (tile := shares.next_for(process)) is None:
                    raise Over
                last_blocks.begun(process)
                with reads.running(), span("reading"):
                    block = state.reader.read(
                        tile, plan.network, slot.allocate, as_stored=plan.takes_stored
                    )._replace(number=next(numbers))
            timeline.note(f"process {process + 1} has its first block")
            return block

        def after_reading() -> list[Work]:
            # In this process: ``PatchRunner.stages`` (``patch_runner.py``). For workers: ``Fleet``
            # has one stage.
            computing = list(map(passing_items, slot.stages()))
            computed = f"process {process + 1} has computed its first block"
            taken = last_blocks.passing(process, "taken", nothing_to_do)
            noted = last_blocks.passing(process, "computed", partial(timeline.note, computed))
            further = [*_timed(clock, "host_layers", after_layers), noted]
            return [*_in_turns(computing, turn.wait_to_finish, taken, further), write]

        if slot.one_at_a_time:
            return StageChain(
                [in_turn([read, *after_reading()])],
                over=slot.free if last else nothing_to_do,
            )
        # Stage 0 reads. Stage 1, the first of ``after_reading``, computes in this thread.
        return StageChain([read], here=1, later=after_reading)

    per_process = [(slots, Lock()) for slots in prepared.block_slots(stopwatch, state.labels)]

    last_blocks = LastBlocks(_leaving(prepared, timeline, turn, len(per_process), last=last))
    chains = [
        chain(number, slot, reading)
        for number, (slots, reading) in enumerate(per_process)
        for slot in slots
    ]

    columns = state.remaining.columns(plan.patch, swept=plan.network.swept_along)
    several = any(slot.one_at_a_time for slots, _ in per_process for slot in slots)
    over = nothing_to_do if several else turn.all_read
    shares, numbers = Shares[int, Tile](_read(last_blocks.handed_out(columns), over)), count()
    try:
        with (
            ChainThreads(repeat(None), chains, state.remaining.stop) as threads,
            prepared.in_use(stopwatch),
        ):
            threads.meanwhile(turn.wait_to_compute)
            with stopwatch.during("building"):
                threads.meanwhile(prepared.wait_until_ready)
            timeline.note(CAN_COMPUTE)
            last_blocks.all_started()
            with stopwatch.during("running"):
                threads.finish()
            timeline.note("all blocks are written")
        memory = prepared.plan.memory
        note_warm(memory.total - memory.process)
    finally:
        stopwatch.add("reading", reads.seconds)
        # Slots finish blocks at the same time, so their seconds are not added up.
        stopwatch.add("host_layers", fmean(clock.of("host_layers") for clock in clocks))


def _read(columns: Iterator[Sequence[Tile]], over: Action) -> Iterator[Sequence[Tile]]:
    """Yield all columns, and then call a function."""
    yield from columns
    over()


def _leaving(
    prepared: PreparedPlan, timeline: Timeline, turn: Turn, processes: int, *, last: bool
) -> Iterator[dict[Passing, Action]]:
    """Yield, for each process, what is called when its last block is taken, and computed.

    A run in several processes keeps its turn.

    Args:
        prepared: computes the blocks.
        timeline: takes the end of each process.
        turn: the turn of the run.
        processes: the number of processes.
        last: as for ``run_volume``.
    """

    def leave(number: int) -> None:
        timeline.note(f"process {number + 1} has computed its last block")
        if last:
            prepared.leave(number)
        if processes == 1:
            turn.computed()

    for number in range(processes):
        taken = turn.finishing if processes == 1 else nothing_to_do
        yield {"taken": taken, "computed": partial(leave, number)}


def _in_turns(
    computing: Sequence[Work], wait_to_finish: Action, taken: Work, further: Sequence[Work]
) -> list[Work]:
    """Return the stages that compute blocks, for runs that follow each other.

    Args:
        computing: the stages of a prepared plan.
        wait_to_finish: waits until the run before is done. Its last block may lie in a buffer that
            this run's second block takes. So the stage before the last keeps the first block until
            then.
        taken: called when the last of several stages takes a block.
        further: what the last stage does after it has computed a block.
    """
    *before, final = computing
    if not before:
        return [in_turn([final, *further])]

    def finished_before(item: Any) -> Any:
        wait_to_finish()
        return item

    before[-1] = in_turn([before[-1], finished_before])
    return [*before, in_turn([taken, final, *further])]


def _timed(stopwatch: Stopwatch, stage: ReportStage, works: Sequence[Work]) -> list[Work]:
    """Return works whose seconds a stopwatch counts."""

    def timed(work: Work) -> Work:
        def run(item: Any) -> Any:
            with stopwatch.during(stage):
                return work(item)

        return run

    return list(map(timed, works))
