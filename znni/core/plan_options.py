"""Options of a plan: memory, threads, devices and accuracy, and what callers pass for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import ClassVar, TypedDict

from znni.core.errors import InvalidInput, option
from znni.core.nearest import nearest
from znni.core.option_fields import Panel, described
from znni.core.option_types import Accuracy, Costs, Division, check_names
from znni.core.processors import FASTEST, DeviceChoice

# Fewer bytes of memory than this are a number whose unit was forgotten.
LEAST_BYTES = 1024


@dataclass(frozen=True)
class Choices:
    """Limits and choices that a plan must respect.

    Attributes:
        ram: bytes that the process may take beside the arrays given to it, or a size such as
            ``8GiB``. The default is the available memory less a margin.
        threads: number of worker threads; by default one for every core.
        device: where layers run: ``cpu``, ``gpu`` (the first one), ``cpu+gpu`` (first layers
            on the CPU, the others on the GPU; or all on the CPU, some with the GPU's help), or
            ``auto`` (the fastest).
        theta: number of first layers on the host; the others run on the GPU. It is the ``theta`` of
            the ZNNi paper, and ``layers_on_host`` of a plan. By default the fastest.
        gpu_memory: bytes of GPU memory, as for ``ram``, beside what CUDA takes for itself.
        gpus: number of GPUs that compute patches at the same time, ``all``, or a list of GPU
            numbers such as ``0,2``.
        accuracy: lowest accuracy class that primitives may have. ``tf32`` allows relative errors of
            up to 2e-3 per layer, and ``bfloat16`` up to 1e-2, where that is faster.
        costs: source of predicted times. ``measured`` uses the results of znni calibrate on this
            machine, and ``built-in`` the cost model. ``auto`` uses measured times if there are
            any. If there are none, a long run first measures the layers of its plan. Except with
            ``built-in``, the times of a run are added to the measured ones.
        micro_batches: allowed sizes of the pieces in which a layer's batch is computed when memory
            is short: ``none`` (only the whole batch), ``power-of-two``, or ``all``.

    Raises:
        InvalidInput: a name is not among its choices, or a value is of another type.
    """

    panel: ClassVar[Panel] = "Plan and hardware"

    ram: int | str | None = described(
        None,
        "Memory that the process may use, such as 8GiB. Default: 9/10 of what is available.",
        metavar="SIZE",
        parse=str,
        first=True,
    )
    threads: int | None = described(None, "Worker threads. Default: all cores.")
    device: DeviceChoice = described(
        FASTEST, "Device that runs the layers; auto: the fastest choice.", first=True
    )
    theta: int | None = described(
        None,
        "Number of first layers on the host; the others run on the GPU. Default: the fastest.",
        metavar="N",
    )
    gpu_memory: int | str | None = described(
        None,
        "GPU memory that the plan may use. Default: 9/10 of what is free.",
        metavar="SIZE",
        parse=str,
    )
    gpus: int | str = described(
        1,
        "GPUs that compute patches at the same time: a number, all, or a list.",
        metavar="N|all|0,2",
        parse=str,
    )
    accuracy: Accuracy = described(
        "float32",
        "tf32 and bfloat16 may be faster; they allow relative errors up to 0.002 and 0.01 per "
        "layer.",
    )
    costs: Costs = described(
        "auto", "Source of predicted times: measurements of znni calibrate, or the built-in model."
    )
    micro_batches: Division = described(
        "power-of-two",
        "Sizes of the pieces into which a layer's batch may be cut if memory is short. "
        "Planning with all takes several times as long.",
    )

    def __post_init__(self) -> None:
        given: dict[str, tuple[object, tuple[type, ...], str]] = {
            "ram": (self.ram, (int, str), "a size such as '8GiB', or bytes"),
            "threads": (self.threads, (int,), "a number"),
            "theta": (self.theta, (int,), "a number of layers"),
            "gpu_memory": (self.gpu_memory, (int, str), "a size such as '8GiB', or bytes"),
        }
        for name, (value, types, wanted) in given.items():
            if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
                kind = type(value).__name__
                raise InvalidInput(f"{name} is {value!r}, a {kind}; give {wanted}")
        check_names(
            device=self.device,
            accuracy=self.accuracy,
            costs=self.costs,
            micro_batches=self.micro_batches,
        )


class PlanOptions(TypedDict, total=False):
    """The fields of ``Choices`` as keyword arguments."""

    ram: int | str | None
    threads: int | None
    device: DeviceChoice
    theta: int | None
    gpu_memory: int | str | None
    gpus: int | str
    accuracy: Accuracy
    costs: Costs
    micro_batches: Division


ANYTHING = Choices()


def check_keywords(caller: Callable[..., object], known: type, given: Mapping[str, object]) -> None:
    """Check the options that a function or a class of ``znni`` takes as ``**options``.

    Args:
        caller: the function or class.
        known: the ``TypedDict`` of its options, such as ``PlanOptions``.
        given: the options passed to it.

    Raises:
        InvalidInput: a limit of memory is so few bytes that a unit was forgotten.
        TypeError: the caller takes no such argument. Python raises the same for any function.
    """
    for name in given:
        if name not in (options := known.__annotations__):
            names = {*signature(caller).parameters, *options} - {"options"}
            close = nearest(name, names)
            hint = f". Did you mean {close!r}?" if close else ""
            raise TypeError(
                f"znni.{caller.__qualname__}() got an unexpected keyword argument {name!r}{hint}"
            )
    for name in ("ram", "gpu_memory"):
        value = given.get(name)
        if isinstance(value, int) and 0 < value < LEAST_BYTES and not isinstance(value, bool):
            raise InvalidInput(f"{option(name, value)}: {_unit_forgotten(value)}")


def memory_size(given: int | str) -> int:
    """Return bytes of memory from ``8GiB``, ``500MB`` or a plain number of bytes.

    Raises:
        ValueError: the value is none of these, or text of so few bytes that a unit was forgotten.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        if not re.fullmatch(r"\d+(\.\d+)? *[A-Za-z]*", str(given).strip()):
            raise ValueError  # pydantic would accept it and ignore the rest
        size = int(TypeAdapter(ByteSize).validate_python(given))
    except (ValueError, ValidationError, OverflowError):
        raise ValueError(f"{given!r} is not a size of memory; write it as 8GiB or 500MB") from None
    if isinstance(given, str) and given.strip().isdigit() and 0 < size < LEAST_BYTES:
        raise ValueError(_unit_forgotten(given.strip()))
    return size


def _unit_forgotten(number: int | str) -> str:
    return f"{number} is {number} bytes; did you mean {number}GiB?"
