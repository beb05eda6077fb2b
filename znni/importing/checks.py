"""Checks of what a source says of its layers, and the errors that say what is wrong.

All functions raise an ``InvalidInput`` that names the layer's origin, its problem and a remedy.
"""

from __future__ import annotations

import math
import sys
from typing import NoReturn, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.core.text import counted
from znni.core.yaml_file import LARGEST, is_count
from znni.importing.steps import Float64
from znni.network.layers import Activation, Padding

LAYERS = (
    "networks here have 3D convolutions (also transposed), max and average pooling, nearest and "
    "trilinear upsampling by whole factors, global pooling, concatenation, sums, products, batch, "
    "instance, group, layer and global response normalization and the activations "
    + ", ".join(get_args(Activation))
    + ": write it with these"
)
WINDOWS = "depends on a whole window in a way that this version does not run"
# Ends of such messages, by the kind of operation.
NORMS = "replace it by batch normalization (BatchNorm3d) and train again"
ATTENTION = "replace it by convolutions and train again"


class NotExpressed(InvalidInput):
    """A layer that networks here cannot have, although the network's own library computes it.

    Attributes:
        why: the layer, its problem, and what a new training would change.
    """

    def __init__(self, message: str, why: str = "") -> None:
        self.why = why or message
        super().__init__(message)


def cannot_express(origin: str, why: str) -> NoReturn:
    """Raise an error about a layer that only the network's own library computes."""
    raise NotExpressed(f"{origin} {why}")


def refuse(origin: str, why: str) -> NoReturn:
    """Raise an error about a layer."""
    raise InvalidInput(f"{origin} {why}")


def unknown(origin: str) -> NoReturn:
    """Refuse a layer of a type that networks here do not have."""
    cannot_express(origin, f"cannot be represented; {LAYERS}")


def per_map(origin: str, constant: object, maps: int) -> Float64:
    """Return a constant as values (maps,), from a number or an array that broadcasts to them."""
    array = np.asarray(constant, np.float64) if _is_number(constant) else constant
    given = floats(origin, "constant", array)
    if given.size != 1 and (1,) * (5 - given.ndim) + given.shape != (1, maps, 1, 1, 1):
        refuse(
            origin,
            f"has a constant of shape {given.shape} for {counted(maps, 'map')}; give one value, or "
            f"one for each map as (maps, 1, 1, 1)",
        )
    return np.broadcast_to(given.reshape(-1), maps).copy()


def floats(origin: str, what: str, array: object) -> Float64:
    """Return an array's values after checking that they are finite real numbers."""
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        refuse(origin, f"has a {what} of {found}; give floating-point numbers")
    if not np.isfinite(array).all():
        refuse(origin, f"has a {what} that is not finite (NaN or infinite); export it again")
    return np.asarray(array, np.float64)


def vector(origin: str, what: str, array: object, maps: int) -> Float64:
    """Return values (maps,), which are zeros if there is no array."""
    values = np.zeros(maps) if array is None else floats(origin, what, array)
    if values.shape != (maps,):
        refuse(
            origin,
            f"has a {what} of shape {values.shape} for {counted(maps, 'map')}; give one value for "
            f"each",
        )
    return values


def extents(origin: str, what: str, given: object) -> Vec3:
    """Return three positive integers, from one or three given ones."""
    integers = _three_integers(given)
    if integers is None or min(integers) < 1:
        refuse(origin, f"has {what} {given}; give three positive integers")
    return integers


def count(origin: str, what: str, given: object) -> int:
    """Return a positive integer."""
    if not is_count(given):
        refuse(origin, f"has {what} {given}; give a positive integer")
    return given


def groups_of(origin: str, groups: object, maps: int) -> int:
    """Return a number of groups, which divides the maps."""
    if not is_count(groups) or maps % groups:
        refuse(origin, f"has {groups} groups for {counted(maps, 'map')}; give a divisor of these")
    return groups


def integer(origin: str, what: str, given: object) -> int:
    """Return an integer."""
    if not isinstance(given, int) or isinstance(given, bool):
        refuse(origin, f"has {given!r} for its {what}; give an integer")
    return given


def padding_of(origin: str, given: object, same: Vec3, what: str = "padding") -> Padding:
    """Return a padding, given as in PyTorch, or as six integers: all before, then all after.

    Args:
        origin: the layer.
        given: the padding.
        same: the samples that ``same`` adds per axis.
        what: its name in messages.
    """
    if given == "valid":
        return Padding()
    if given == "same":
        return Padding(same // 2, same - same // 2)
    is_six = isinstance(given, list | tuple) and len(given) == 6
    sides = (given[:3], given[3:]) if is_six else (given, given)  # type: ignore[index]
    before, after = map(_three_integers, sides)
    if before is None or after is None:
        refuse(origin, f"has {what} {given}; give three integers from 0 on")
    return Padding(before, after)


def number(origin: str, what: str, given: object) -> float:
    """Return a finite number."""
    if not _is_number(given) or not math.isfinite(given):
        refuse(origin, f"has {given!r} for its {what}; give a finite number")
    return float(given)


def origin(name: str, kind: str) -> str:
    """Return the name of a source's layer, for messages and comments."""
    return "".join(c if c.isprintable() else "?" for c in f"{name} ({kind})")


def array_of(tensor: object) -> NDArray[np.generic] | None:
    """Return a PyTorch tensor as a NumPy array, floats as float64; None for None."""
    if tensor is None:
        return None
    torch = sys.modules.get("torch")  # only an imported PyTorch can have made a tensor
    if not (torch and isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided):
        raise InvalidInput(f"a {type(tensor).__name__} is no dense tensor; save plain tensors")
    held = tensor.detach().cpu()
    result: NDArray[np.generic] = (held.double() if held.is_floating_point() else held).numpy()
    return result


def _is_number(given: object) -> TypeGuard[int | float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _three_integers(given: object) -> Vec3 | None:
    """Return three integers from 0 on, from three or one; the one may be in a list."""
    several = list(given) if isinstance(given, list | tuple) else [given]
    three = several * 3 if len(several) == 1 else several
    known = [
        size
        for size in three
        if isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= LARGEST
    ]
    return Vec3(*known) if len(known) == len(three) == 3 else None
