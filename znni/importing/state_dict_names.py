"""Names in state dicts, and which batch normalization follows which convolution by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from znni.core.errors import InvalidInput


@dataclass(frozen=True)
class Parts:
    """The layers that a state dict has tensors for, by the prefixes of their keys.

    Attributes:
        prefixes: all prefixes, in the order of their keys.
        convolutions: prefixes of convolutions, in this order.
        norms: maps of each batch normalization.
        scales: prefixes of instance and group normalizations, which have factors and shifts alone.
        slopes: prefixes of slopes of prelu.
        ordered: True if keys are in the order in which the layers were defined.
    """

    prefixes: Sequence[str]
    convolutions: Sequence[str]
    norms: Mapping[str, int]
    scales: Sequence[str]
    slopes: Sequence[str]
    ordered: bool


def norms_of(
    parts: Parts, convolutions: Mapping[str, int], affine: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Find what the batch normalizations belong to.

    Args:
        parts: the layers of the state dict.
        convolutions: output maps of its convolutions.
        affine: the network's affine layers. One may have the name of a batch normalization.

    Returns:
        The batch normalization right after each convolution that has one, and that of each affine
        layer.
    """
    own = {name: name for name in affine if name in parts.norms}
    left = [name for name in affine if name not in own]
    belongs: dict[str, str] = {}
    others = [norm for norm in parts.norms if norm not in own]
    # Numbers tell more than places. If an affine layer has no batch normalization of its name, it
    # takes one that numbers leave over.
    for owner_of in (_owner_by_number, _owner_by_place)[: 1 if left else 2]:
        waiting, others = others, []
        for norm in waiting:
            owner = owner_of(parts, convolutions, norm)
            if owner is None or owner in belongs or convolutions[owner] != parts.norms[norm]:
                others.append(norm)
            else:
                belongs[owner] = norm
    if len(others) > len(left):
        raise InvalidInput(
            f"has a batch normalization {others[0]!r}, and its name does not tell whether it "
            f"comes right after a convolution, or after which; import the module with "
            f"znni.import_network, or an exported program"
        )
    return belongs, own | dict(zip(left, others, strict=False))


def _owner_by_number(parts: Parts, convolutions: Mapping[str, int], norm: str) -> str | None:
    """Return the convolution before a batch normalization if numbers tell it: conv1 and bn1.

    In an nn.Sequential, batch normalization 1 follows convolution 0. If several convolutions
    match, the one in the nearest module is chosen.
    """
    step = 1 if _numbered_together(convolutions, norm) else 0
    found = [
        name for name in _in_reach(convolutions, norm) if _following(name, step) == _numbers(norm)
    ]
    nearest = _nearest(found, norm)
    if parts.ordered:
        nearest = [name for name in nearest if _comes_before(parts, name, norm)][-1:]
    return nearest[0] if len(nearest) == 1 else None


def _owner_by_place(parts: Parts, convolutions: Mapping[str, int], norm: str) -> str | None:
    """Return the convolution before a batch normalization that has no number: the nearest one."""
    if _numbered_together(convolutions, norm):
        return None
    nearest = _nearest(_in_reach(convolutions, norm), norm)
    if parts.ordered:  # no other batch normalization may lie between
        at = parts.prefixes.index(norm)
        others = [parts.prefixes.index(other) for other in parts.norms if other != norm]
        last = max((other for other in others if other < at), default=-1)
        nearest = [name for name in nearest if last < parts.prefixes.index(name) < at]
    return nearest[0] if len(nearest) == 1 else None


def _numbered_together(convolutions: Mapping[str, int], norm: str) -> bool:
    return skeleton(norm) in {skeleton(name) for name in convolutions}


def _comes_before(parts: Parts, name: str, norm: str) -> bool:
    return parts.prefixes.index(name) < parts.prefixes.index(norm)


def _in_reach(convolutions: Mapping[str, int], norm: str) -> list[str]:
    """Return the convolutions whose module, or list in a module, is around a batch normalization's.

    A batch normalization in another block may come after a sum, whatever is defined before it.
    """
    modules = norm.split(".")
    return [name for name in convolutions if modules[: len(_module(name))] == _module(name)]


def _module(name: str) -> list[str]:
    """Return the path of the module that holds a layer, or the list or sequence of layers."""
    *path, last = name.split(".")
    if last.isdecimal() and path:
        path.pop()
    return path


def _nearest(names: Sequence[str], norm: str) -> list[str]:
    """Return the names that share the most modules with that of a batch normalization."""
    modules = norm.split(".")
    pairs = [zip(name.split("."), modules, strict=False) for name in names]
    shared = [len(list(takewhile(lambda pair: pair[0] == pair[1], of_both))) for of_both in pairs]
    return [name for name, count in zip(names, shared, strict=True) if count == max(shared)]


def natural(key: str) -> list[tuple[int, str]]:
    """Return a sort key that puts 10 after 9."""
    return [(int(part), "") if number else (0, part) for part, number in _split(key)]


def skeleton(name: str) -> str:
    """Return a name with ``#`` for each number."""
    return "".join("#" if number else part for part, number in _split(name))


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part, number in _split(name) if number)


def _following(name: str, step: int) -> tuple[int, ...]:
    """Return the numbers in a name, with ``step`` added to the last one."""
    numbers = _numbers(name)
    return (*numbers[:-1], numbers[-1] + step) if numbers else ()


def _split(name: str) -> list[tuple[str, bool]]:
    """Split a name into parts, each with a flag that tells numbers."""
    return [(part, part.isdecimal()) for part in re.split(r"([0-9]{1,9})", name) if part]
