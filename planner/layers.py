"""The ways to compute each step, and the best choice of them under a memory limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

from planner.costs import CostModel
from planner.divisions import (
    NO_LIMIT,
    Limit,
    Offer,
    listings,
    piece_sizes,
    undominated_offers,
)
from planner.front import Front
from planner.gpu_room import NO_ROOM, GpuRoom
from planner.sharing import shared_offer
from znni.cost import Cost, Memory
from znni.micro_batches import cost_of_pieces
from znni.network import Operation
from znni.options import Division
from znni.primitive import Primitive, UsesGpu
from znni.segments import Step
from znni.shapes import Shape5

UNDECIDED = "undecided"
NOTHING_WITHIN = Limit(-inf, -inf)

# An operation, its shapes, and whether the output has its place already.
Asked: TypeAlias = tuple[Operation, Shape5, Shape5, bool]


def bare_step(operation: Operation, shape: Shape5, shape_out: Shape5) -> Step:
    """A step that asks for an operation: no primitive, no cost but its input and output."""
    least = Cost(0, 0, Memory.beside(shape.nbytes + shape_out.nbytes, workspace=0), 1)
    return Step(operation, UNDECIDED, shape, shape_out, least, seconds=0.0, error=0.0)


class Options:
    """All steps that do what a step without a primitive asks, none worse than another in all.

    Args:
        primitives: to choose from.
        model: of their times.
        division: the sizes of the pieces that a batch may be computed in.
        gpu_room: what primitives of the host may take of a GPU.
    """

    def __init__(
        self,
        primitives: Iterable[Primitive],
        model: CostModel,
        division: Division = "power-of-two",
        gpu_room: GpuRoom = NO_ROOM,
    ) -> None:
        self._primitives = tuple(primitives)
        self._shares = any(isinstance(primitive, UsesGpu) for primitive in self._primitives)
        self._model = model
        self._gpu_room = gpu_room
        self._division: Division = division
        self.divides = division != "none"
        self._known: dict[Asked, tuple[Limit, tuple[Step, ...]]] = {}
        self._known_whole: dict[Asked, tuple[Step, ...]] = {}
        self._offers: dict[tuple[Operation, Shape5, Shape5], list[Offer]] = {}

    def __call__(
        self, step: Step, *, in_place: bool = False, limit: Limit = NO_LIMIT
    ) -> tuple[Step, ...]:
        """Steps on the Pareto front of seconds, resident and working memory, fastest first.

        Args:
            step: its operation and shapes are what is asked.
            in_place: its output has its place already, as of ``Step.taken``.
            limit: of the steps that are wanted: their seconds, and their resident memory and
                workspace. Others may be among those returned.
        """
        if not self.divides:
            return self.whole(step, in_place=in_place)
        key = (step.operation, step.shape_in, step.shape_out, in_place)
        within, known = self._known.get(key, (NOTHING_WITHIN, ()))
        if not within.covers(limit):
            both = limit.or_within(within)
            steps = [*self.whole(step, in_place=in_place), *self._divided(step, both)]
            known = _pareto(steps, in_place)
            self._known[key] = both, known
        return known

    def dividing(self, division: Division) -> Options:
        """The same in pieces of other sizes, with the calls that were priced."""
        other = copy(self)
        other._division, other.divides, other._known = division, division != "none", {}
        return other

    def whole(
        self,
        step: Step,
        *,
        in_place: bool = False,
        limit: Limit = NO_LIMIT,  # noqa: ARG002 - they are few, and all asked for once
    ) -> tuple[Step, ...]:
        """Of these, with the batch whole, the Pareto front.

        Args:
            step: its operation and shapes are what is asked.
            in_place: as of a call.
            limit: as of a call.
        """
        key = (step.operation, step.shape_in, step.shape_out, in_place)
        if key not in self._known_whole:
            self._known_whole[key] = _pareto(list(self._undivided(step)), in_place)
        return self._known_whole[key]

    def __len__(self) -> int:
        """How many different calls were priced, which is what a search spends its time on."""
        return len(self._offers)

    def _undivided(self, asked: Step) -> Iterator[Step]:
        """Steps by one primitive for all items at once."""
        for offer in self._offered(asked.operation, asked.shape_in, asked.shape_out):
            name, seconds = offer.primitive.name, offer.seconds
            yield replace(
                asked, primitive=name, cost=offer.cost, seconds=seconds, error=offer.error
            )

    def _divided(self, asked: Step, limit: Limit) -> Iterator[Step]:
        """Steps in pieces within a limit."""
        shape, out = asked.shape_in, asked.shape_out
        each = out.n // shape.n
        parts = [
            offer
            for items in piece_sizes(shape.n, self._division)
            for offer in self._offered(
                asked.operation, shape._replace(n=items), out._replace(n=items * each)
            )
            if not offer.cost.memory.gpu_working  # what uses a GPU cuts the batch itself
        ]
        whole = self._offered(asked.operation, shape, out)
        for found in listings(shape.n, whole, parts, limit):
            costs = ((times, offer.cost) for times, offer in found.taken)
            yield replace(
                asked,
                primitive=found.primitive.name,
                cost=cost_of_pieces(costs, shape.nbytes + out.nbytes),
                seconds=found.seconds,
                error=found.error,
            )

    def _offered(self, operation: Operation, shape: Shape5, out: Shape5) -> list[Offer]:
        """What the primitives ask for one call; those that another beats in all are left out."""
        key = (operation, shape, out)
        if key not in self._offers:
            each = out.n // shape.n

            def priced(primitive: Primitive, items: int) -> Offer | None:
                some = shape._replace(n=items)
                return self._priced(primitive, operation, some, out._replace(n=items * each))

            offers = [o for p in self._primitives if (o := priced(p, shape.n))]
            if self._shares and (shared := shared_offer(operation, shape, offers, priced)):
                offers.append(shared)
            self._offers[key] = undominated_offers(offers)
        return self._offers[key]

    def _priced(
        self, primitive: Primitive, operation: Operation, shape: Shape5, out: Shape5
    ) -> Offer | None:
        """What one asks for one call, if it applies and a GPU has the room for it."""
        if primitive.out_shape(operation, shape) != out:
            return None
        cost = primitive.cost(operation, shape)
        if not self._gpu_room.holds(cost.memory):
            return None
        estimate = self._model.estimate(primitive, operation, shape, cost)
        return Offer(primitive, shape.n, cost, *estimate)


def _pareto(steps: list[Step], in_place: bool) -> tuple[Step, ...]:
    front = Front()
    taken = ((step, step.taken(in_place=in_place)) for step in steps)
    by_time = sorted(taken, key=lambda it: (it[0].seconds, it[1]))
    return tuple(s for s, working in by_time if front.admits(working, s.cost.memory.resident))


@dataclass(frozen=True)
class Slot:
    """A step's place in a plan.

    Attributes:
        options: steps to choose from.
        runs: how often the chosen one runs for a patch.
        held: bytes alive beside what the step itself takes.
        in_place: its output has its place among them already.
    """

    options: tuple[Step, ...]
    runs: int
    held: int
    in_place: bool = False

    def peak(self, step: Step) -> int:
        """Bytes alive at the most while a step is run here."""
        return self.held + step.taken(in_place=self.in_place)


@dataclass(frozen=True)
class Choice:
    """Steps for a run of slots, and what they take together for one patch."""

    seconds: float
    resident: int
    peak: int
    steps: tuple[Step, ...]


def fastest_within(slots: Sequence[Slot], allowed: float, seconds_limit: float) -> Choice | None:
    """The fastest of ``undominated_within``."""
    return next(iter(undominated_within(slots, allowed, seconds_limit)), None)


def undominated_within(slots: Sequence[Slot], allowed: float, seconds_limit: float) -> list[Choice]:
    """One step per slot: all choices whose resident bytes and highest working bytes fit together.

    Exact: partial choices are dropped only when another is no worse in time, resident bytes and
    peak, or when they cannot fit, or cannot beat ``seconds_limit``.

    Returns:
        Those left, the fastest first.
    """
    fastest_rest = [0.0]
    for slot in reversed(slots):
        fastest_rest.append(fastest_rest[-1] + slot.runs * slot.options[0].seconds)
    fastest_rest.reverse()
    if fastest_rest[0] >= seconds_limit:
        return []

    partial = [Choice(0.0, 0, 0, ())]
    for index, slot in enumerate(slots):
        grown = []
        for choice in partial:
            for step in slot.options:
                seconds = choice.seconds + slot.runs * step.seconds
                resident = choice.resident + step.cost.memory.resident
                peak = max(choice.peak, slot.peak(step))
                if resident + peak <= allowed and seconds + fastest_rest[index + 1] < seconds_limit:
                    grown.append(Choice(seconds, resident, peak, (*choice.steps, step)))
        partial = _undominated(grown)
    return partial


def _undominated(choices: list[Choice]) -> list[Choice]:
    front = Front()
    by_time = sorted(choices, key=lambda c: (c.seconds, c.resident, c.peak))
    return [choice for choice in by_time if front.admits(choice.resident, choice.peak)]


def least_memory(slots: Sequence[Slot]) -> Choice:
    """One step per slot: the smallest peak, whatever the time."""
    bounds = sorted({slot.peak(step) for slot in slots for step in slot.options})
    best: Choice | None = None
    for peak in bounds:
        steps = []
        for slot in slots:
            fitting = [s for s in slot.options if slot.peak(s) <= peak]
            if not fitting:
                break
            steps.append(min(fitting, key=lambda s: s.cost.memory.resident))
        else:
            resident = sum(s.cost.memory.resident for s in steps)
            if best is None or resident + peak < best.resident + best.peak:
                seconds = sum(slot.runs * s.seconds for slot, s in zip(slots, steps, strict=True))
                best = Choice(seconds, resident, peak, tuple(steps))
    if best is None:
        raise ValueError("a slot without options has no least memory")
    return best
