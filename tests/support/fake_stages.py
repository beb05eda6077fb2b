"""A run's overhead with few numbers, which tests of the planner can add up themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from planner.overhead import Load, Overhead
from znni.calibration.overhead_figures import run_overhead
from znni.core.processors import DeviceKind, Processors
from znni.core.shapes import Vec3
from znni.engine.stages.layers import LayersModel
from znni.network.network import Network
from znni.plans.stage import Counts, Seconds, Setting, StageModel
from znni.plans.totals import Number, PlanTime

Model = TypeVar("Model", bound=StageModel)


@dataclass(frozen=True)
class FakeBlocks(StageModel):
    """A stage that holds some bytes for each value.

    Attributes:
        value_in: the host bytes of an input value.
        value_out: the host bytes of an output value.
        gpu_value_in: the GPU bytes of a value that the first layers there take.
        gpu_value_out: the GPU bytes of an output value.
    """

    value_in: int = 0
    value_out: int = 0
    gpu_value_in: int = 0
    gpu_value_out: int = 0

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        values_out = run.network.out_features * each.voxels
        return self.value_in * each.values_in + self.value_out * values_out + each.handed

    def locked_bytes(self, _run: Setting, each: Counts[Number], /) -> Number:
        return 2 * each.handed

    def gpu_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        values_out = run.network.out_features * each.voxels
        return self.gpu_value_in * each.first_input + self.gpu_value_out * values_out


@dataclass(frozen=True)
class Timed(StageModel):
    """The seconds of a stage, which holds no bytes here.

    Attributes:
        stage: the stage.
    """

    stage: StageModel

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        return self.stage.seconds(run, each)

    def lost(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        return self.stage.lost(run, each)


def overhead(
    process: int = 0,
    value_in: int = 0,
    value_out: int = 0,
    *stages: StageModel,
    gpu_value_in: int = 0,
    gpu_value_out: int = 0,
    **fields: Any,
) -> Overhead:
    """Return the overhead of a run with fake blocks, and with further stages.

    Args:
        process: the bytes of the process.
        value_in: the host bytes of an input value.
        value_out: the host bytes of an output value.
        stages: further stages, of which only the seconds count.
        gpu_value_in: the GPU bytes of a value that the first layers there take.
        gpu_value_out: the GPU bytes of an output value.
        fields: further fields of the overhead.
    """
    blocks = FakeBlocks(value_in, value_out, gpu_value_in, gpu_value_out)
    return Overhead(process, (blocks, *map(Timed, (LayersModel(), *stages))), **fields)


def stage(kind: type[Model], *given: Any) -> Model:
    """Return a run's model of a stage, for the arguments of ``run_overhead``."""
    return stage_in(run_overhead(*given), kind)


def stage_in(found: Overhead, kind: type[Model]) -> Model:
    """Return the model of a stage, which takes nothing if the run has none."""
    stages = (it.stage if isinstance(it, Timed) else it for it in found.stages)
    return next((it for it in stages if isinstance(it, kind)), kind())


def host_blocks(found: Overhead, network: Network, patch: Vec3, processors: Processors) -> int:
    """Return the bytes of a run's blocks on the host."""
    run = found.setting(network, processors.split("+"))
    return found.of_host(run, found.counts(network, patch)).blocks


def time_of(
    found: Overhead, network: Network, patch: Vec3, loads: Mapping[DeviceKind, Load]
) -> PlanTime:
    """Return the time of a run with some loads."""
    run = found.setting(network, loads)
    return found.time_of_run(run, found.counts(network, patch), loads)
