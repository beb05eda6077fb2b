"""Trained parameters: files to checked arrays per layer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.errors import InvalidInput
from znni.network import Conv, Network

Float32: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class ConvWeights:
    """One convolution's parameters.

    Attributes:
        weight: (out, in, z, y, x), cross-correlation.
        bias: (out,).
    """

    weight: Float32
    bias: Float32


@dataclass(frozen=True)
class Weights:
    """The parameters of a network by layer name, with where they came from."""

    layers: Mapping[str, ConvWeights]
    source: str

    def __getitem__(self, name: str) -> ConvWeights:
        return self.layers[name]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(w.weight.nbytes + w.bias.nbytes for w in self.layers.values())

    @cached_property
    def sha256(self) -> str:
        """Hash over names and values, the same for equal weights from any file format."""
        digest = hashlib.sha256()
        for name in sorted(self.layers):
            digest.update(name.encode())
            digest.update(self.layers[name].weight.tobytes())
            digest.update(self.layers[name].bias.tobytes())
        return digest.hexdigest()


def random_weights(network: Network, seed: int) -> Weights:
    """He-scaled normal weights and small biases, for timing and tests (He et al. 2015, eq. 10).

    Raises:
        InvalidInput: the seed is negative.
    """
    if seed < 0:
        raise InvalidInput(f"{seed} is no seed for random weights; give 0 or larger")
    generator = np.random.default_rng(seed)
    layers = {}
    for conv in network.convolutions:
        scale = np.sqrt(2.0 / (conv.in_features * conv.kernel.volume))
        weight = generator.standard_normal(conv.weight_shape, dtype=np.float32)
        bias = generator.standard_normal(conv.out_features, dtype=np.float32)
        layers[conv.name] = ConvWeights(weight * np.float32(scale), bias * np.float32(0.01))
    return Weights(layers, source=f"random, seed {seed}")


def load_weights(path: str | Path, network: Network) -> Weights:
    """Read a network's parameters from ``.safetensors``, ``.npz`` or HDF5 (``.h5``, ``.hdf5``).

    The file holds ``NAME.weight`` (out, in, z, y, x) and ``NAME.bias`` (out) for every
    convolution and nothing else, in float16, float32 or float64.

    Raises:
        InvalidInput: no such file, or an array that is missing, unknown, of a wrong shape or
            type, or not finite.
    """
    path = Path(path)
    arrays = _read_arrays(path)
    expected: dict[str, tuple[int, ...]] = {}
    for conv in network.convolutions:
        expected[f"{conv.name}.weight"] = conv.weight_shape
        expected[f"{conv.name}.bias"] = (conv.out_features,)
    if missing := sorted(expected.keys() - arrays.keys()):
        raise InvalidInput(
            f"{path}: lacks {missing[0]!r}, which network {network.name} needs; it holds "
            f"{', '.join(sorted(arrays)) or 'nothing'}"
        )
    if unknown := sorted(arrays.keys() - expected.keys()):
        raise InvalidInput(
            f"{path}: holds {unknown[0]!r}, which network {network.name} has no layer for; are "
            f"these the weights of another network?"
        )
    checked = {name: _checked(path, name, arrays[name], expected[name]) for name in expected}
    layers = {
        conv.name: ConvWeights(checked[f"{conv.name}.weight"], checked[f"{conv.name}.bias"])
        for conv in network.convolutions
    }
    return Weights(layers, source=str(path))


def weights_for(network: Network, path: str | Path | None, random_seed: int | None) -> Weights:
    """The weights asked for: random ones, a given file, or the file that the network names.

    Raises:
        InvalidInput: none of the three, or both of the first two.
    """
    if random_seed is not None and path is not None:
        raise InvalidInput(f"both random weights and the weights {path} are asked for; give one")
    if random_seed is not None:
        return random_weights(network, random_seed)
    path = path or network.weights
    if path is None:
        raise InvalidInput(
            f"network {network.name} names no weights; give a file with --weights, or "
            f"--random-weights SEED to try the network out"
        )
    return load_weights(path, network)


def _read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    if not path.is_file():
        raise InvalidInput(f"{path}: no such weights file; check the path")
    try:
        match path.suffix:
            case ".safetensors":
                from safetensors.numpy import load_file

                return dict(load_file(path))
            case ".npz":
                with path.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
                    return {name: archive[name] for name in archive.files}
            case ".h5" | ".hdf5":
                return _read_hdf5(path)
    except Exception as error:  # each format has errors of its own; all mean the same here
        raise InvalidInput(f"{path}: cannot be read as {path.suffix} weights: {error}") from error
    raise InvalidInput(
        f"{path}: unknown kind of weights file {path.suffix!r}; use .safetensors, .npz or .h5"
    )


def _read_hdf5(path: Path) -> dict[str, NDArray[np.generic]]:
    import h5py

    found: dict[str, NDArray[np.generic]] = {}

    def keep(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path, "r") as file:
        file.visititems(keep)
    return found


def _checked(path: Path, name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> Float32:
    if array.shape != shape:
        raise InvalidInput(f"{path}: {name} has shape {array.shape}; the network needs {shape}")
    if array.dtype.kind != "f":
        raise InvalidInput(
            f"{path}: {name} is {array.dtype}; save it as float32 (float16 and float64 will do)"
        )
    with np.errstate(over="ignore"):  # an overflow becomes inf, which is reported below
        values = np.ascontiguousarray(array, dtype=np.float32)
    if bad := int(values.size - np.isfinite(values).sum()):
        raise InvalidInput(
            f"{path}: {name} has {bad} values that are NaN or infinite in float32; "
            f"export the weights again"
        )
    return values


def conv_weights(layer: Conv, weights: ConvWeights | None) -> ConvWeights:
    """A convolution's weights, which a caller must have given."""
    if weights is None:
        raise InvalidInput(f"layer {layer.name} is a convolution and needs weights")
    return weights
