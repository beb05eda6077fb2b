"""What users choose: among names, and how much memory."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

from znni.errors import InvalidInput

Border: TypeAlias = Literal["valid", "same"]
Pad: TypeAlias = Literal["reflect", "edge", "constant"]
OutputType: TypeAlias = Literal["float32", "float16", "uint8"]
Accuracy: TypeAlias = Literal["float32", "bfloat16"]
Costs: TypeAlias = Literal["auto", "built-in", "measured"]
DeviceChoice: TypeAlias = Literal["auto", "cpu", "gpu"]
Compression: TypeAlias = Literal["zstd", "gzip", "none"]
Division: TypeAlias = Literal["none", "power-of-two", "all"]

# The largest relative error that a primitive of each class may promise, best class first: of the
# largest output, where products do not cancel. Only primitives of the class that a user allows, and
# of those before it, are planned.
ACCURACIES: dict[Accuracy, float] = {"float32": 2e-5, "bfloat16": 1e-2}


def check_choices(
    border: Border,
    pad: Pad = "reflect",
    dtype: OutputType = "float32",
    accuracy: Accuracy = "float32",
    costs: Costs = "auto",
    micro_batches: Division = "power-of-two",
    device: DeviceChoice = "auto",
) -> None:
    """Check names that a caller without a type checker may have misspelt.

    Raises:
        InvalidInput: one is not among its choices.
    """
    for name, value, choices in (
        ("border", border, Border),
        ("pad", pad, Pad),
        ("dtype", dtype, OutputType),
        ("accuracy", accuracy, Accuracy),
        ("costs", costs, Costs),
        ("micro_batches", micro_batches, Division),
        ("device", device, DeviceChoice),
    ):
        if value not in get_args(choices):
            known = ", ".join(get_args(choices))
            raise InvalidInput(f"{name} is {value!r}; choose one of {known}")


def memory_size(given: int | str) -> int:
    """Bytes of memory from ``8GiB``, ``500MB`` or a plain number of bytes.

    Raises:
        ValueError: it is none of these.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        if not re.fullmatch(r"\d+(\.\d+)? *[A-Za-z]*", str(given).strip()):
            raise ValueError  # pydantic would take the part that it can read
        return int(TypeAdapter(ByteSize).validate_python(given))
    except (ValueError, ValidationError, OverflowError):
        raise ValueError(f"{given!r} is not a size of memory; write it as 8GiB or 500MB") from None
