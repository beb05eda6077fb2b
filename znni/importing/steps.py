"""What every source of a network is read as: a chain of steps, in float64.

Steps say what the source computes, one after the other, whether or not a network file has a layer
for it; ``chain`` makes layers of them. Each carries its ``origin``, the name that the source has
for it and its type, for messages and for the comments of the network file: ``3 (MaxPool3d)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3
from znni.network.network import Activation
from znni.network.weights import Float32

Float64: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Convolution:
    """A valid cross-correlation with stride 1, and a bias.

    Attributes:
        origin: its name and type in the source.
        weight: (out, in, z, y, x).
        bias: (out,).
        name: that its layer is to have; numbered if empty.
    """

    origin: str
    weight: Float64
    bias: Float64
    name: str = ""


@dataclass(frozen=True)
class MaxPooling:
    """Max-pooling with stride = window; attributes as those of ``Convolution``."""

    origin: str
    window: Vec3
    name: str = ""


@dataclass(frozen=True)
class Affine:
    """``x * scale + shift``, both (maps,): a batch normalization in evaluation mode."""

    origin: str
    scale: Float64
    shift: Float64


@dataclass(frozen=True)
class Nonlinearity:
    """An activation by itself."""

    origin: str
    kind: Activation


Step: TypeAlias = Convolution | MaxPooling | Affine | Nonlinearity


@dataclass(frozen=True)
class Original:
    """The network as its own library computes it.

    Attributes:
        runtime: the library, by its name.
        run: output (f', z', y', x') of an input (f, z, y, x), pooled, so fewer voxels than the
            dense output has.
        size: extents of the only input that it takes, if it takes no other.
        most_flops: beyond which it would take minutes.
    """

    runtime: str
    run: Callable[[Float32], Float32]
    size: Vec3 | None = None
    most_flops: float = float("inf")


@dataclass(frozen=True)
class Found:
    """What a source holds.

    Attributes:
        steps: first to last.
        original: what runs it, or why nothing here does, as the end of "not compared: ...".
        notes: what was assumed in reading it.
    """

    steps: tuple[Step, ...]
    original: Original | str
    notes: tuple[str, ...] = ()
