"""Plans as values: the planner makes them, the engine runs them, and files store them as JSON.

A plan computes one patch at a time on each device. Its first segments may be on the host, and the
others on a GPU. The GPU then computes one patch while the host computes the next.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from znni.core import html
from znni.core.errors import PLAN_AGAIN, InvalidInput
from znni.core.file_fields import UNLESS_DEFAULT, file_key
from znni.core.processors import GPU, HOST, HOST_AND_GPU, DeviceKind, Processors, may_use_gpu
from znni.core.shapes import FLOAT_BYTES, ONE, Shape5, Vec3
from znni.core.text import duration
from znni.machine.machine import Device, Machine
from znni.network.geometry import input_box
from znni.network.network import Network
from znni.plans.band import Band, band_of
from znni.plans.block_storage import storage_for
from znni.plans.device_partition import DevicePart, parts_of
from znni.plans.plan_text import plan_table
from znni.plans.rewrites.fusion_rules import fusion_of
from znni.plans.segments import Segment, Step
from znni.plans.swept import swept_for
from znni.plans.totals import PlanMemory, PlanTime

if TYPE_CHECKING:
    from pydantic import TypeAdapter


# The types of fields that hold numbers with a fraction.
FLOATS = ("float", "float | None")


@dataclass(frozen=True)
class Plan:
    """A plan: how a network is run over a volume.

    Attributes:
        machine: the machine that the plan was made for.
        output: the extents of the output.
        patch: the output voxels of one patch. The last patch along an axis may overlap its
            neighbour.
        segments: the segments, first to last.
        memory: the peak bytes on the host.
        time: the predicted time.
        costs: the origin of the predicted times.
        gpu_memory: the peak bytes on the GPU, if the plan uses one.
        input_itemsize: the bytes of a block's input value: 4 of float32, or fewer of a stored
            integer, which a GPU scales.
        slowdown: how many times as long the job takes beside the programs that run now, if that is
            not known from measurements.
    """

    network: Network
    machine: Machine
    output: Vec3
    patch: Vec3
    segments: tuple[Segment, ...]
    memory: PlanMemory
    time: PlanTime
    costs: str
    gpu_memory: PlanMemory | None = None
    input_itemsize: int = FLOAT_BYTES
    slowdown: float = field(default=1.0, metadata=UNLESS_DEFAULT)

    @property
    def takes_stored(self) -> bool:
        """True if its first layers take values as they are stored, and a GPU scales them."""
        return self.input_itemsize < FLOAT_BYTES

    @property
    def computation(self) -> Hashable:
        """The computation of a patch. It is equal for plans that differ only in limits or times."""
        steps = tuple(segment.computation for segment in self.segments)
        return self.patch, self.input_itemsize, self.network.swept_along, steps

    @property
    def is_swept(self) -> bool:
        """True if the volume is swept: each patch of a column goes on from the last one."""
        return self.network.is_swept

    @property
    def device(self) -> Processors:
        """The processors of the layers: ``cpu``, ``gpu``, or ``cpu+gpu`` for both."""
        on_host = self.on_host
        if on_host and (on_host.uses_gpu or self.on_gpu):
            return HOST_AND_GPU
        return self.segments[0].device

    @property
    def gpu(self) -> Device:
        """The GPU that the plan uses, if it uses one: the machine's first, or an equal one."""
        return self.machine.gpus[0]

    def device_of(self, part: DevicePart) -> Device:
        """Return the device that runs a part."""
        return self.gpu if part.has_own_memory else self.machine.host

    @property
    def workers(self) -> int:
        """The number of patches computed at the same time: one per GPU used, or one on the host."""
        return self.machine.used_gpus if self.gpu_memory else 1

    @property
    def limits(self) -> dict[DeviceKind, tuple[PlanMemory, Device]]:
        """The memory that the plan takes on each device, beside that device."""
        limits: dict[DeviceKind, tuple[PlanMemory, Device]]
        limits = {HOST: (self.memory, self.machine.host)}
        return limits | ({GPU: (self.gpu_memory, self.gpu)} if self.gpu_memory else {})

    @property
    def last_device(self) -> Device:
        """The GPU if the plan uses one, else the host."""
        return self.gpu if self.gpu_memory else self.machine.host

    @property
    def device_memory(self) -> PlanMemory:
        """The peak bytes on the last device."""
        return self.gpu_memory or self.memory

    def normalized_as(self, network: Network) -> Plan:
        """Return the same plan with the input of a network whose normalization is known."""
        scaled = self.network.scaled_by(network.scaling)
        return self if scaled is self.network else replace(self, network=scaled)

    def memory_on(self, device: DeviceKind) -> PlanMemory:
        """Return the peak bytes on a device; those on the host if the plan does not use the GPU."""
        return self.limits.get(device, self.limits[HOST])[0]

    @property
    def parts(self) -> tuple[DevicePart, ...]:
        """The segments on the host, if there are any, and then those on the GPU."""
        network, patch = self.network, self.patch
        storage = storage_for(network, patch)
        swept = swept_for(network, patch, self.output, self.workers)
        return parts_of(self.segments, self.input_shape, storage, swept)

    def part(self, device: DeviceKind) -> DevicePart | None:
        """Return the segments on a device, if there are any."""
        return next((part for part in self.parts if part.device == device), None)

    @property
    def on_host(self) -> DevicePart | None:
        """The segments on the host, if there are any."""
        return self.part(HOST)

    @property
    def on_gpu(self) -> DevicePart | None:
        """The segments on the GPU, if there are any."""
        return self.part(GPU)

    @property
    def layers_on_host(self) -> int:
        """The number of the network's first layers on the host; others, if any, run on the GPU."""
        on_host = self.on_host
        return sum(len(step.layers) for step in on_host.steps) if on_host else 0

    @property
    def is_split(self) -> bool:
        """True if the first layers are on the host and the others on a GPU."""
        return len(self.parts) > 1

    @property
    def input_patch(self) -> Vec3:
        """The input voxels of one patch, or of one of its windows."""
        return input_box(self.network, self.patch).size

    @property
    def input_shape(self) -> Shape5:
        """The shape of one patch's input, or of the windows that are computed at once."""
        return Shape5.of(self.network.together, self.network.in_features, self.input_patch)

    @property
    def patches(self) -> int:
        """The number of patches that cover the output."""
        return self.output.ceil_div(self.patch).volume

    @property
    def windows(self) -> float:
        """The average number of windows that are computed for a patch; 1 without windows."""
        window = self.network.window
        return replace(window, together=1).a_block(self.patch) if window else 1.0

    @property
    def layer_runs(self) -> float:
        """The average number of times that the layers run for a patch; 1 without windows."""
        window = self.network.window
        return window.a_block(self.patch) if window else 1.0

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, first to last."""
        return tuple(step for segment in self.segments for step in segment.steps)

    def runs(self) -> Iterator[tuple[Segment, int]]:
        """Yield each segment with the number of times that it runs for one patch."""
        for part in self.parts:
            yield from part.runs()

    @property
    def patch_seconds(self) -> float:
        """The predicted seconds of one patch's layers, on both devices together."""
        return sum(part.seconds for part in self.parts)

    @property
    def seconds(self) -> float:
        """The predicted seconds of the whole job, from the start of its process to its end."""
        return self.time.total(self.patches)

    @property
    def error(self) -> float:
        """The expected error of the predicted time, as a share of it.

        The errors of the steps are added up, because most have one cause, such as the clock or the
        memory. The rest of the time is assumed to be off by the same share.
        """
        runs = (each for part in self.parts for each in part.step_runs())
        steps = [(n * step.seconds, step.error) for step, n in runs]
        return sum(seconds * error for seconds, error in steps) / self.patch_seconds

    @property
    def band(self) -> Band | None:
        """The band of the predicted time; None for a machine that is not here.

        Nobody knows how busy that machine is.
        """
        runs = (each for part in self.parts for each in part.step_runs())
        return None if self.machine.absent else band_of(self.costs, runs, self.slowdown)

    def time_in_words(self, seconds: float) -> str:
        """Return predicted seconds in words, with their band if there is one."""
        band = f", {self.band.around(seconds)}" if self.band else ""
        return f"{duration(seconds)}{band}"

    @property
    def voxels_per_second(self) -> float:
        """The predicted output voxels per second of the whole job."""
        return self.output.volume / self.seconds

    @property
    def wasted_work(self) -> float:
        """The share of multiplications, from 0 to 1, spent on borders, overlap and repetition.

        The comparison is one pass over an endless volume, where each layer computes every position
        once. A segment that runs for every offset of a pool repeats its convolutions.
        """
        dense = computed = 0.0
        for part in self.parts:
            for step, n in part.step_runs():
                if step.conv:
                    positions = step.conv.local_size(step.shape_in.size)
                    computed += n * step.shape_in.n * positions.volume * step.conv.parameters
                    scale = self.network.strides[step.conv.name] if self.network.is_tiled else ONE
                    dense += step.conv.parameters / scale.volume
        if not computed:  # other libraries compute all layers
            return 0.0
        return 1 - dense * self.output.volume / (self.layer_runs * computed * self.patches)

    def __str__(self) -> str:
        return plan_table(self)

    def _repr_html_(self) -> str:
        steps = [
            (step.operation.name, runs * step.seconds, f"{runs * step.seconds:.3f} s")
            for segment, runs in self.runs()
            for step in segment.steps
        ]
        return html.text(plan_table(self)) + html.bars("seconds of a patch", steps)

    def to_json(self) -> str:
        """Return the plan as JSON text, for ``from_json``."""
        return self._json

    @cached_property
    def _json(self) -> str:
        """The plan as JSON text. Each of many volumes stores it."""
        return json.dumps(_plain(self), indent=1, ensure_ascii=False)

    @staticmethod
    def from_json(text: str | bytes) -> Plan:
        """Return the plan that a JSON text holds.

        Raises:
            InvalidInput: the text is not a plan's JSON, or the plan's shapes do not chain.
        """
        from pydantic import ValidationError  # a run that makes its plan reads no text

        try:
            plan = _adapter().validate_json(text)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"])) or "the top"
            raise InvalidInput(
                f"not a plan of this version of znni: wrong or missing at {where}; {PLAN_AGAIN}"
            ) from None
        except InvalidInput as error:
            raise InvalidInput(f"not a plan: {error}; {PLAN_AGAIN}") from None
        for sound, wrong in (
            (_is_of_its_network(plan), "its steps are not its network's layers"),
            (_has_its_devices(plan), "it does not say which device its layers run on"),
            (_is_positive(plan), "its sizes and its time are not all positive"),
            (
                all(0 <= step.error < inf for step in plan.steps),
                "the error of its time is negative or not a number",
            ),
        ):
            if not sound:
                raise InvalidInput(f"not a plan: {wrong}; {PLAN_AGAIN}")
        return plan


def _is_of_its_network(plan: Plan) -> bool:
    wanted = tuple(node.layer for node in plan.network.nodes)
    if storage := storage_for(plan.network, plan.patch):
        wanted = tuple(node.layer.local for node in storage.steps_of(plan.network.nodes))
    layers = [layer for step in plan.steps for layer in step.layers]
    places = {layer: place for place, layer in enumerate(wanted)}
    order = [places.get(step.layers[-1], 0) for step in plan.steps]  # that of their last layers
    alike = len(layers) == len(wanted) and set(layers) == set(wanted)
    if not alike or order != sorted(order) or not all(it.steps for it in plan.segments):
        return False
    if any(it.is_tiled != plan.network.is_tiled for it in plan.segments):
        return False
    return all(_takes_its_inputs(step, plan.network) for step in plan.steps)


def _takes_its_inputs(step: Step, network: Network) -> bool:
    """Return whether a step takes what its layers do, and may compute all of these."""
    if len(step.layers) > 1:
        fusion = fusion_of(network, step)
        return fusion is not None and step.takes == fusion.takes
    inputs = {node.name: node.inputs for node in network.nodes}
    return step.takes == inputs[step.gives]


def _has_its_devices(plan: Plan) -> bool:
    """Return whether the plan only goes from the host to the GPU, and has a GPU if it uses one."""
    devices = [segment.device for segment in plan.segments]
    on_gpu = bool(plan.machine.gpus) and plan.gpu_memory is not None
    given = bool(devices) and devices == sorted(devices)
    return given and may_use_gpu(plan.device) == on_gpu


def _is_positive(plan: Plan) -> bool:
    sub_batches = (segment.sub_batch for segment in plan.segments)
    sizes = (*plan.output, *plan.patch, *sub_batches, plan.machine.host.threads)
    nominal = (step.cost.seconds for step in plan.steps if step.cost.seconds is not None)
    seconds = (*nominal, *(step.seconds for step in plan.steps))
    timed = plan.time.valid and all(0 < each < inf for each in seconds)
    return min(sizes) >= 1 and timed


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Return what reads plans. Making it takes a tenth of a second."""
    from pydantic import TypeAdapter

    return TypeAdapter(Plan)


def _plain(value: object) -> Any:
    """Return a part of a plan as JSON has it: dataclasses by their fields, tuples as lists."""
    match value:
        case tuple():
            return list(map(_plain, value))
        case Path():
            return str(value)
        case float():
            return value if isfinite(value) else None
        case _ if is_dataclass(value):
            written = (it for it in fields(value) if _in_file(value, it))
            return {file_key(it): _of_field(value, it) for it in written}
    return value


def _in_file(value: object, field: Field[Any]) -> bool:
    """Return whether JSON has a field, as older versions wrote it."""
    return field.metadata != UNLESS_DEFAULT or getattr(value, field.name) != field.default


def _of_field(value: object, field: Field[Any]) -> Any:
    """Return a field as JSON has it. A number is written as it is when the plan is read again."""
    plain = _plain(getattr(value, field.name))
    return float(plain) if field.type in FLOATS and isinstance(plain, int) else plain
