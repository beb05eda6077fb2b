"""Output of the current folder's ``tiny.yaml``, computed by the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from command_line import voxels
from numpy.typing import NDArray

from bench.reference import sliding_output
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Weights, load_weights, random_weights

TOLERANCE = 1e-5


def parts() -> tuple[Network, Weights]:
    """Return the network and its weights."""
    network = load_network("tiny.yaml")
    assert network.weights is not None
    return network, load_weights(network.weights, network)


def expected(volume: NDArray[Any], seed: int | None = None) -> NDArray[np.float64]:
    """Return the network's output for stored values (z, y, x) or (f, z, y, x).

    The weights are those of the network's file, or random ones of a seed.
    """
    network = load_network("tiny.yaml")
    weights = parts()[1] if seed is None else random_weights(network, seed)
    maps = volume.reshape(-1, *volume.shape[-3:])
    return sliding_output(network, weights, maps * network.scaling.scale + network.scaling.offset)


def whole() -> NDArray[np.float64]:
    """Return the network's output for ``volume.h5``."""
    return expected(voxels())


def close(found: NDArray[Any], wanted: NDArray[Any], tolerance: float = TOLERANCE) -> bool:
    """Return whether shapes are equal, and values too except for float32 rounding."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
    return found.shape == wanted.shape
