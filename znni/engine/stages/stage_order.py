"""All stages, in the order in which a block goes through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from znni.engine.run_state import RunState
from znni.engine.stage_chain import Work
from znni.engine.stages import (
    blend,
    convert,
    download,
    label,
    layers,
    read,
    resample,
    share,
    upload,
    write,
)
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.plans.stage import StageModel
from znni.plans.stored_values import Stored

# The thread in which a stage works on a block after its layers. "computing": the last thread that
# computes, before it takes the next block. "writing": the thread that writes.
Thread: TypeAlias = Literal["computing", "writing"]


class StageEntry(NamedTuple):
    """The entry of a stage: what it takes, and what it does with blocks.

    Attributes:
        model: returns its model: the memory that it holds, and its seconds.
        work: returns what it does with a block; None if it does nothing in such a run. A stage has
            none if a backend, the reader or another stage does its work.
        thread: the thread in which it works, if it does.
    """

    model: Callable[[Machine, Stored, HandlingTimes | None], StageModel]
    work: Callable[[RunState, Network], Work | None] | None = None
    thread: Thread = "writing"


# All stages, in the order in which a block goes through them.
STAGES = (
    StageEntry(read.model),
    StageEntry(share.model),
    StageEntry(upload.model),
    StageEntry(layers.model),
    StageEntry(download.model),
    StageEntry(blend.model, blend.work, "computing"),
    StageEntry(resample.model),
    StageEntry(label.model),
    StageEntry(convert.model),
    StageEntry(write.model, write.work),
)


def works(state: RunState, network: Network, thread: Thread) -> list[Work]:
    """Return what the stages of a thread do with a block, in order.

    Args:
        state: the state of the run.
        network: the network, as the plan computes it.
        thread: the thread.
    """
    there = [it.work for it in STAGES if it.work and it.thread == thread]
    return [work for make in there if (work := make(state, network))]


def stage_models(
    machine: Machine, stored: Stored, measured: HandlingTimes | None
) -> tuple[StageModel, ...]:
    """Return the models of all stages.

    Args:
        machine: the machine.
        stored: how values are stored at both ends of the run.
        measured: measured times of the machine, if there are any.
    """
    return tuple(stage.model(machine, stored, measured) for stage in STAGES)
