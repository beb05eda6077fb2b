"""Deciding which worker computes which block next.

This is policy alone: it reads no clock, starts no thread and talks to nobody. The caller passes the
time in seconds, from any clock that never goes back.

Blocks go out in order, and blocks to be repeated go out first. In a sweep, a worker gets the blocks
of a column one after another (``Shares``). A block that failed goes to a worker whose last block
succeeded, if there is one. So a bad worker cannot use up the attempts at a good
block, and a bad block cannot shut out good workers. Near the end, a slow worker could
hold up the whole run with one last block. So each worker has slots: the times at which it would
finish a first, a second and a third further block. If ``n`` blocks wait, the run is projected to
end at the ``n``-th of all workers' slots. A worker that would finish a block later than that is
refused: other workers finish all of them sooner. A worker may be late, so each of its slots counts
as somewhat later than it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from znni.engine.shares import Shares

DEPTH = 3  # blocks in a worker's hands: one is read, one computed and one written
MOST_ATTEMPTS = 255  # counted in one byte a block
LEAST_SECONDS = 1e-3  # for a block; clocks and messages are not finer
WEIGHT = 0.25  # of the newest time between completions, in the smoothed one
OVERDUE_TIMES = 10
OVERDUE_SECONDS = 60.0

# Share of a block's seconds by which a worker may be late with a block. Delays of several blocks
# add up like independent errors. Simulated clusters of unequal workers, whose blocks vary by 10 %,
# end soonest with this share.
SLACK = 0.4

FIRST_BLOCK = 1 + SLACK  # its longest time, as a multiple of the expected seconds

BISECTIONS = 40  # halvings that find the projected end, to a millionth of a second near it


@dataclass(slots=True)
class _Worker:
    """A worker that is there.

    Attributes:
        until: time at which it ends.
        seconds: smoothed time between its completions, or None before the first one.
        since: time of its last completion, or of its first block after it had none in hand.
        hand: blocks that it has, with the time at which each was handed out.
        failing: whether the last block that it had in hand failed.
    """

    until: float
    seconds: float | None
    since: float = 0.0
    hand: dict[int, float] = field(default_factory=dict)
    failing: bool = False

    @property
    def rate(self) -> float:
        return 0.0 if self.seconds is None else 1 / self.seconds

    @property
    def slack(self) -> float:
        """The share of its pace by which a worker may be late with one more block."""
        return SLACK * sqrt(1 + len(self.hand))

    def pace(self, typical: float, now: float) -> float:
        """Return its seconds a block; a block that takes longer already counts as it is."""
        seconds = typical if self.seconds is None else self.seconds
        return max(seconds, now - self.since) if self.hand else seconds

    def free(self, pace: float, now: float) -> float:
        """Return the time at which it will have finished all blocks in hand."""
        return self.since + len(self.hand) * pace if self.hand else now

    def completed(self, now: float) -> None:
        """Note the time of a completion."""
        taken = now - self.since
        if self.seconds is not None:
            taken = WEIGHT * taken + (1 - WEIGHT) * self.seconds
        self.seconds = max(taken, LEAST_SECONDS)
        self.since = now


class Schedule:
    """Decides which worker computes which block next.

    Call ``next_for`` for a worker after each of its blocks, and for all workers every second: the
    answer for an idle worker changes while others are late.

    Args:
        finished: which blocks of the grid are done already. Blocks are numbered in its C order.
        attempts: attempts after which a block is quarantined.
        column: the number of blocks of a column, which a worker takes one after another.
    """

    def __init__(self, finished: NDArray[np.bool_], *, attempts: int = 5, column: int = 1) -> None:
        if not 1 <= attempts <= MOST_ATTEMPTS:
            raise ValueError(f"attempts is {attempts}; give a number from 1 to {MOST_ATTEMPTS}")
        self._attempts = attempts
        self._open = ~finished.ravel()  # not done; quarantined blocks too
        self._failures = np.zeros(finished.size, np.uint8)
        waiting = map(int, np.flatnonzero(self._open))
        columns = (list(blocks) for _, blocks in groupby(waiting, lambda it: it // column))
        self._fresh = Shares[str, int](columns)
        self._again: deque[int] = deque()  # to be repeated; some may be done meanwhile
        self._quarantined: dict[int, None] = {}
        self._workers: dict[str, _Worker] = {}
        self._holder: dict[int, str] = {}
        self._left = self._waiting = int(np.count_nonzero(self._open))
        self._rate, self._known = 0.0, 0  # of workers whose seconds are known
        self._projection: tuple[float, float] | None = None  # a time, and the end projected then

    @property
    def left(self) -> int:
        """Number of blocks that are neither done nor quarantined."""
        return self._left

    @property
    def in_hand(self) -> int:
        """Number of blocks that workers have."""
        return len(self._holder)

    @property
    def quarantined(self) -> list[int]:
        """Blocks that failed too often."""
        return list(self._quarantined)

    @property
    def rewritten(self) -> list[int]:
        """Blocks that are done and took several attempts; read them again at the end."""
        failed = np.flatnonzero(self._failures)
        return [int(block) for block in failed[~self._open[failed]]]

    def join(self, worker: str, *, until: float = inf, seconds: float | None = None) -> None:
        """Add a worker, or describe one anew.

        Args:
            worker: its name.
            until: time at which its walltime ends, less a margin.
            seconds: predicted seconds a block, if they are known.
        """
        if seconds is not None:
            seconds = max(seconds, LEAST_SECONDS)
        known = self._workers.setdefault(worker, _Worker(until, None))
        self._forget_rate(known)
        known.until, known.seconds = until, seconds
        self._count_rate(known)

    def leave(self, worker: str) -> list[int]:
        """Remove a worker that is gone, and return the blocks that it had.

        They are to be computed again, and each has used up an attempt.
        """
        gone = self._workers.pop(worker, None)
        if gone is None:
            return []
        self._forget_rate(gone)
        self._fresh.leave(worker)
        for block in gone.hand:
            self._repeat(block)
        return list(gone.hand)

    def next_for(self, worker: str, now: float) -> int | None:
        """Return the next block for a worker, which has it in hand from now on.

        It is None if no block waits for this worker, or if it has enough. It is also None if the
        worker would finish the block after its walltime or after the projected end of the run.

        Raises:
            KeyError: there is no such worker.
        """
        asking = self._workers[worker]
        if not self._waiting or len(asking.hand) >= DEPTH or not self._may_take(asking, now):
            return None
        block = self._next_waiting(worker)
        if block is None:
            return None
        self._waiting -= 1
        self._holder[block] = worker
        if not asking.hand:
            asking.since = now
        asking.hand[block] = now
        return block

    def done(self, worker: str, block: int, now: float) -> bool:
        """Note that a worker has computed and written a block.

        Returns:
            False if the block was done already. Then a worker that had been given up wrote the
            same bytes a second time.
        """
        finisher = self._workers.get(worker)
        if finisher and block in finisher.hand:
            del finisher.hand[block], self._holder[block]
            self._forget_rate(finisher)
            finisher.failing = False
            finisher.completed(now)
            self._count_rate(finisher)
            waiting = False
        else:
            waiting = block not in self._holder
        if not self._open[block]:
            return False
        self._open[block] = False
        if block in self._quarantined:
            del self._quarantined[block]
            return True
        self._left -= 1
        self._waiting -= waiting
        self._projection = None
        return True

    def reopen(self, block: int) -> None:
        """Have a block that was done computed again: it is not as it was written."""
        if not self._open[block] and block not in self._holder:
            self._open[block] = True
            self._left += 1
            self._waiting += 1
            self._again.append(block)
            self._projection = None

    def failed(self, worker: str, block: int) -> float | None:
        """Note that a worker could not compute a block, which has used up an attempt.

        Returns:
            The time at which the block was handed out; None if the worker had left, which counted
            as an attempt already.
        """
        failing = self._workers.get(worker)
        if failing is None or block not in failing.hand:
            return None
        given = failing.hand.pop(block)
        failing.failing = True
        self._repeat(block)
        return given

    def overdue(self, now: float) -> list[tuple[str, int]]:
        """Return the workers and blocks that take far longer than expected, as if they hung."""
        late = []
        typical = self._typical_seconds()
        for name, worker in self._workers.items():
            seconds = worker.seconds or typical or inf
            limit = max(OVERDUE_SECONDS, OVERDUE_TIMES * seconds * len(worker.hand))
            late += [(name, block) for block, given in worker.hand.items() if now - given > limit]
        return late

    def rate(self, now: float) -> float:
        """Return the blocks per second of the workers that have some in hand."""
        busy = (worker for worker in self._workers.values() if worker.hand and worker.seconds)
        return sum(1 / worker.pace(inf, now) for worker in busy)

    def time_left(self, now: float) -> float:
        """Return the seconds until all blocks are done by the workers that are there.

        They are taken to go on beyond their walltime, since other workers will follow them. It is
        infinite if no worker's speed is known.
        """
        typical = self._typical_seconds()
        if not self._left:
            return 0.0
        if not typical:
            return inf
        workers = self._workers.values()
        ends = [worker.free(worker.pace(typical, now), now) for worker in workers if worker.hand]
        if self._waiting:
            none = [0.0] * len(workers)
            ends.append(self._end(now, typical, list(workers), [inf] * len(workers), none))
        return max(0.0, max(ends) - now)

    def _may_take(self, asking: _Worker, now: float) -> bool:
        """Return whether a worker would finish one more block in time."""
        typical = self._typical_seconds()
        if not typical:  # nothing is known yet
            return now < asking.until
        pace = asking.pace(typical, now)
        free = asking.free(pace, now)
        # These divisions are the ones in ``_end``, so that rounding never refuses all workers.
        if (asking.until - free) / pace - asking.slack < 1:
            return False
        if free + (1 + asking.slack) * pace <= now + self._waiting * typical / len(self._workers):
            return True  # the end cannot be before that, even if no worker had a block in hand
        if self._projection is None or self._projection[0] != now:
            workers = self._trusted() or list(self._workers.values())
            untils, slacks = zip(*((each.until, each.slack) for each in workers), strict=True)
            self._projection = now, self._end(now, typical, workers, untils, slacks)
        return (self._projection[1] - free) / pace - asking.slack >= 1

    def _end(
        self, now: float, typical: float, workers: Sequence[_Worker],
        untils: Sequence[float], slacks: Sequence[float],
    ) -> float:  # fmt: skip
        """Return the time at which the workers' slots suffice for all blocks that wait.

        It stays the same while blocks are handed out to workers that finish them before. It is
        infinite if the workers end too early.

        Args:
            now: the time.
            typical: seconds a block of workers whose own are not known.
            workers: those that are counted on.
            untils: time at which each worker ends.
            slacks: how late each worker may be with its last block, as a share of its pace.
        """
        paces = [worker.pace(typical, now) for worker in workers]
        pairs = zip(workers, paces, strict=True)
        free = np.array([worker.free(pace, now) for worker, pace in pairs])
        pace, until = np.array(paces), np.array(untils)
        slack = np.array(slacks)

        def slots(end: float) -> float:
            counts = np.floor((np.minimum(end, until) - free) / pace - slack)
            return float(np.maximum(counts, 0).sum())

        if slots(inf) < self._waiting:
            return inf
        early, late = now, float((free + (self._waiting + 1 + slack) * pace).max())
        for _ in range(BISECTIONS):
            middle = (early + late) / 2
            if slots(middle) < self._waiting:
                early = middle
            else:
                late = middle
        return late

    def _trusted(self) -> list[_Worker]:
        """Return the workers whose last block did not fail."""
        return [worker for worker in self._workers.values() if not worker.failing]

    def _next_waiting(self, worker: str) -> int | None:
        """Return a block for a worker: one to be repeated first, but last if it is failing."""
        if not self._workers[worker].failing:
            repeated = self._next_repeated()
            return self._next_fresh(worker) if repeated is None else repeated
        fresh = self._next_fresh(worker)
        return self._next_repeated() if fresh is None and not self._trusted() else fresh

    def _next_repeated(self) -> int | None:
        while self._again:
            block = self._again.popleft()
            if self._open[block]:
                return block
        return None

    def _next_fresh(self, worker: str) -> int | None:
        while (block := self._fresh.next_for(worker)) is not None:
            if self._open[block]:
                return block
        return None

    def _repeat(self, block: int) -> None:
        """Note a failed attempt at a block that was in hand."""
        del self._holder[block]
        self._projection = None
        self._failures[block] += 1
        if not self._open[block]:  # a worker given up before has done it
            return
        if self._failures[block] < self._attempts:
            self._again.append(block)
            self._waiting += 1
        else:
            self._quarantined[block] = None
            self._left -= 1

    def _typical_seconds(self) -> float:
        """Return the seconds a block of a typical worker, or 0 if no worker's are known."""
        return self._known / self._rate if self._known else 0.0

    def _forget_rate(self, worker: _Worker) -> None:
        self._projection = None
        if worker.seconds is not None:
            self._known -= 1
            self._rate = self._rate - worker.rate if self._known else 0.0

    def _count_rate(self, worker: _Worker) -> None:
        if worker.seconds is not None:
            self._known += 1
            self._rate += worker.rate
