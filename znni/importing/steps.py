"""The common form of all sources of a network: a chain of steps, in float64.

Steps are the source's computations in order, even if a network file has no such layer; ``chain``
turns them into layers. Each step has an ``origin``: its name and type in the source, for messages
and for comments in the network file, as ``3 (MaxPool3d)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3
from znni.network.layers import Activation
from znni.network.weights import Float32

Float64: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Convolution:
    """A valid cross-correlation with stride 1, and a bias.

    Attributes:
        origin: its name and type in the source.
        weight: kernels (out, in, z, y, x).
        bias: shifts (out,).
        name: name for its layer; layers without one are numbered.
    """

    origin: str
    weight: Float64
    bias: Float64
    name: str = ""


@dataclass(frozen=True)
class MaxPooling:
    """Max-pooling with stride = window; its attributes are as those of ``Convolution``."""

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
        runtime: name of the library.
        run: function from an input (f, z, y, x) to the output (f', z', y', x'), pooled, so with
            fewer voxels than the dense output.
        size: extents of the input, if it accepts only one size.
        most_flops: operations beyond which it would take minutes.
    """

    runtime: str
    run: Callable[[Float32], Float32]
    size: Vec3 | None = None
    most_flops: float = float("inf")


@dataclass(frozen=True)
class Found:
    """The contents of a source.

    Attributes:
        steps: steps from first to last.
        original: the original network, or why nothing here can run it, as the end of "not compared:
            ...".
        notes: assumptions made while reading the source.
    """

    steps: tuple[Step, ...]
    original: Original | str
    notes: tuple[str, ...] = ()
