"""Trained parameters: from files to checked arrays for each layer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.argument_types import checks_types
from znni.core.errors import InvalidInput, option
from znni.core.mapped_file import check_length, give_back
from znni.core.text import counted
from znni.network.activations import has_slopes
from znni.network.layers import Conv, PerMap, Weighted
from znni.network.network import Network
from znni.network.weights_file import mapped_arrays, read_arrays

Float32: TypeAlias = NDArray[np.float32]

MOST_NAMES = 6  # of arrays, in an error
OF_MODEL = "in the model's file"  # the source of weights that another library keeps
RANDOM = "random, seed {seed}"  # the source of weights that do not come from a file

KINDS = ("weight", "bias")  # a layer's arrays, which files call NAME.weight and NAME.bias


@dataclass(frozen=True)
class ConvWeights:
    """The parameters of one layer.

    Attributes:
        weight: the weights, with the layer's ``weight_shape``. Those of a convolution are
            (out, in / groups, z, y, x), for cross-correlation; those of a transposed convolution
            (in, out / groups, z, y, x); and those of an affine layer or a norm are its factors
            (out,).
        bias: the biases (out,).
        slope: the factors of ``prelu`` for negative values (out,), if that is its activation.
        after: the parameters of the next layer, if both are one operation.
    """

    weight: Float32
    bias: Float32
    slope: Float32 | None = None
    after: ConvWeights | None = None

    @property
    def arrays(self) -> dict[str, Float32]:
        """The arrays by the last part of their names in a file."""
        found = {"weight": self.weight, "bias": self.bias}
        return found if self.slope is None else found | {"slope": self.slope}


@dataclass(frozen=True)
class Weights:
    """The parameters of a network by layer name, with their source."""

    layers: Mapping[str, ConvWeights]
    source: str

    def __getitem__(self, name: str) -> ConvWeights:
        """Return a layer's parameters.

        Raises:
            InvalidInput: no layer has that name.
        """
        if name not in self.layers:
            known = ", ".join(sorted(self.layers)) or "none"
            raise InvalidInput(
                f"{self.source}: has no weights for layer {name!r}; it has those of {known}"
            )
        return self.layers[name]

    def of_operation(self, names: Sequence[str]) -> ConvWeights | None:
        """Return the parameters of layers that are one operation; None if they have none."""
        parameters = None
        for name in reversed(names):
            if name in self.layers:
                parameters = replace(self.layers[name], after=parameters)
        return parameters

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(
            array.nbytes for layer in self.layers.values() for array in layer.arrays.values()
        )

    @cached_property
    def sha256(self) -> str:
        """The hash of names and values. It is the same for equal weights from any file format."""
        digest = hashlib.sha256()
        for name in sorted(self.layers):
            digest.update(name.encode())
            for array in self.layers[name].arrays.values():
                digest.update(np.ascontiguousarray(array).data)
                give_back(array)
        return digest.hexdigest()

    def give_back(self) -> None:
        """Give back the pages of a mapped file, which are read again when they are needed."""
        for layer in self.layers.values():
            for array in layer.arrays.values():
                give_back(array)


@checks_types
def random_weights(network: Network, seed: int) -> Weights:
    """Return He-scaled normal weights and small biases (He et al. 2015, eq. 10).

    They are meant for timing and tests.

    Raises:
        InvalidInput: the seed is negative.
    """
    if seed < 0:
        raise InvalidInput(f"{seed} is not a seed for random weights; give 0 or larger")
    generator = np.random.default_rng(seed)
    layers = {layer.name: random_layer_weights(layer, generator) for layer in network.weighted}
    return Weights(layers, source=RANDOM.format(seed=seed))


def random_layer_weights(layer: Weighted, generator: np.random.Generator) -> ConvWeights:
    """Return random weights of one layer, as ``random_weights`` has them."""
    weight = generator.standard_normal(layer.weight_shape, dtype=np.float32)
    bias = generator.standard_normal(layer.out_features, dtype=np.float32)
    if isinstance(layer, PerMap):
        weight = 1 + weight * np.float32(0.1)
    else:
        weight = weight * np.float32(np.sqrt(2.0 / layer.fan_in))
    slope = None
    if has_slopes(layer.activation):
        slope = generator.uniform(0, 0.5, layer.out_features).astype(np.float32)
    return ConvWeights(weight, bias * np.float32(0.01), slope)


@checks_types
def load_weights(path: str | Path, network: Network) -> Weights:
    """Read a network's parameters from ``.safetensors``, ``.npz`` or HDF5 (``.h5``, ``.hdf5``).

    The file holds ``NAME.weight`` and ``NAME.bias`` (out) for every layer with weights, and
    ``NAME.slope`` (out) if its activation is ``prelu``. It holds nothing else. The types are
    float16, float32 or float64. Kernels of layers with ``mode: convolution`` are flipped.

    Raises:
        InvalidInput: there is no such file. Or an array is missing, unknown, not finite, or of a
            wrong shape or type.
    """
    if not isinstance(path, str | PathLike):
        raise InvalidInput(f"the weights are {path!r}, a {type(path).__name__}; give their file")
    return _loaded(Path(path), network)


def _loaded(path: Path, network: Network, *, mapped: bool = False) -> Weights:
    """Read parameters as ``load_weights`` does. With ``mapped``, map the file if possible."""
    arrays = (mapped_arrays(path) if mapped else None) or read_arrays(path)
    return _correlating(_weights_of(network, arrays, str(path)), network)


def _correlating(weights: Weights, network: Network) -> Weights:
    """Return the weights of a file for cross-correlation: kernels of convolutions are flipped."""
    flipped = {
        layer.name: replace(
            weights[layer.name],
            weight=np.ascontiguousarray(weights[layer.name].weight[:, :, ::-1, ::-1, ::-1]),
        )
        for layer in network.weighted
        if isinstance(layer, Conv) and layer.mode == "convolution"
    }
    return replace(weights, layers={**weights.layers, **flipped})


def checked_weights(given: Weights, network: Network) -> Weights:
    """Check the weights that a program made, by the rules for weights from a file.

    Returns:
        The same values as C-contiguous float32. Arrays that already are so are not copied.

    Raises:
        InvalidInput: an array is missing, unknown, not finite, or of a wrong shape or type.
    """
    arrays: dict[str, object] = {}
    for name, layer in given.layers.items():
        if not isinstance(layer, ConvWeights):
            raise InvalidInput(
                f"{given.source}: layer {name} has a {type(layer).__name__}; give it "
                f"ConvWeights(weight, bias)"
            )
        arrays |= {f"{name}.{kind}": array for kind, array in layer.arrays.items()}
    found = _weights_of(network, arrays, given.source)
    same = found.layers.keys() == given.layers.keys() and all(
        array is arrays[f"{name}.{kind}"]
        for name, layer in found.layers.items()
        for kind, array in layer.arrays.items()
    )
    return given if same else found  # the given ones may know their hash


def _weights_of(network: Network, arrays: Mapping[str, object], source: str) -> Weights:
    """Return a network's weights from arrays named ``NAME.weight`` and ``NAME.bias``."""
    expected = {f"{layer.name}.{kind}" for layer in network.weighted for kind in _kinds(layer)}
    if missing := sorted(expected - arrays.keys()):
        raise InvalidInput(
            f"{source}: lacks {missing[0]!r}, which network {network.name} needs; it holds "
            f"{_some(sorted(arrays))}; give the weights of this network"
        )
    if unknown := sorted(arrays.keys() - expected):
        raise InvalidInput(
            f"{source}: holds {unknown[0]!r}, which network {network.name} has no layer for; are "
            f"these the weights of another network?"
        )
    layers = {}
    for layer in network.weighted:
        found = [arrays[f"{layer.name}.{kind}"] for kind in _kinds(layer)]
        layers[layer.name] = _checked(f"{source}: ", layer, *found)
    return Weights(layers, source)


def _some(names: list[str]) -> str:
    """Return a list of names that is not too long to read."""
    if not names:
        return "nothing"
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _kinds(layer: Weighted) -> tuple[str, ...]:
    """Return the last parts of the names of a layer's arrays."""
    return (*KINDS, "slope") if has_slopes(layer.activation) else KINDS


def weights_for(
    network: Network,
    given: Weights | str | Path | None,
    random_seed: int | None,
    *,
    mapped: bool = False,
) -> Weights:
    """Return random weights, the given weights, or those in the file that the network names.

    Args:
        given: the weights, or their file; None: the file that the network names.
        random_seed: the seed of random weights; None: there is none.
        mapped: whether a file is mapped if it can be, so that its weights take memory only while
            they are used. It may not be overwritten meanwhile; to replace it does no harm.

    Raises:
        InvalidInput: there is none of the three, there are both of the first two, or the weights do
            not fit the network.
    """
    if random_seed is not None and given is not None:
        named = given.source if isinstance(given, Weights) else given
        raise InvalidInput(f"both random weights and the weights {named} are asked for; give one")
    if random_seed is not None:
        return random_weights(network, random_seed)
    if isinstance(given, Weights):
        return checked_weights(given, network)
    path = given or network.weights
    if not network.weighted:
        return Weights({}, OF_MODEL)
    if given is None and network.weights and not network.weights.is_file():
        raise InvalidInput(
            f"network {network.name} names the weights {network.weights.name}, and there is no "
            f"{network.weights.absolute()}; put them there, or give {option('weights', 'FILE')}"
        )
    if path is None:
        about = f" ({network.about.rstrip('.')})" * bool(network.about)
        raise InvalidInput(
            f"network {network.name} names no weights{about}; give {option('weights', 'FILE')} or, "
            f"to try the network out, weights=znni.random_weights(network, 0) (--random-weights 0)"
        )
    return _loaded(Path(path), network, mapped=mapped)


def weights_again(source: str, network: Network) -> Weights:
    """Return the weights that a ``Weights.source`` describes: random ones, or those of a file."""
    if source == OF_MODEL:
        return Weights({}, OF_MODEL)
    if drawn := re.fullmatch(RANDOM.format(seed="([0-9]+)"), source):
        return random_weights(network, int(drawn[1]))
    return load_weights(source, network)


def conv_weights(layer: Weighted, weights: ConvWeights | None) -> ConvWeights:
    """Return a layer's weights as C-contiguous float32, which compiled code may read.

    Raises:
        InvalidInput: there are no weights. Or they are not finite, or of a wrong shape or type.
    """
    if weights is None:
        raise InvalidInput(f"layer {layer.name} needs weights; give it ConvWeights(weight, bias)")
    return _checked("", layer, weights.weight, weights.bias, weights.slope)


def in_one_group(weight: Float32, groups: int) -> Float32:
    """Return weights (in, out / groups, z, y, x) as those of one group, with zeros between."""
    if groups == 1:
        return weight
    taken, given = len(weight) // groups, weight.shape[1]
    whole = np.zeros((len(weight), given * groups, *weight.shape[2:]), np.float32)
    for index in range(groups):
        rows = slice(index * taken, (index + 1) * taken)
        whole[rows, index * given : (index + 1) * given] = weight[rows]
    return whole


def _checked(
    source: str, layer: Weighted, weight: object, bias: object, slope: object = None
) -> ConvWeights:
    """Return checked weights of a layer from any values; errors begin with ``source``."""
    where, maps = f"{source}layer {layer.name}: ", (layer.out_features,)
    return ConvWeights(
        _checked_array(f"{where}weight", weight, layer.weight_shape),
        _checked_array(f"{where}bias", bias, maps),
        _checked_array(f"{where}slope", slope, maps) if has_slopes(layer.activation) else None,
    )


def _checked_array(name: str, array: object, shape: tuple[int, ...]) -> Float32:
    if not isinstance(array, np.ndarray):
        raise InvalidInput(f"{name} is a {type(array).__name__}; give a NumPy array")
    if array.shape != shape:
        raise InvalidInput(
            f"{name} has shape {array.shape}; the network needs {shape}: correct the layer's maps "
            f"or kernel, or give the weights that were trained for it"
        )
    if array.dtype.kind != "f":
        raise InvalidInput(
            f"{name} is {array.dtype}; give it as float32 (float16 and float64 also work)"
        )
    try:
        check_length(array)
    except ValueError as error:
        raise InvalidInput(f"{name}: {error}; its file was overwritten; run again") from None
    with np.errstate(over="ignore"):  # an overflow becomes inf, which is reported below
        values = np.ascontiguousarray(array, dtype=np.float32)
    finite = np.isfinite(values)
    give_back(array)
    if not finite.all():  # counting takes much longer
        bad = int(values.size - np.count_nonzero(finite))
        raise InvalidInput(
            f"{name} has {counted(bad, 'value')} not finite in float32 (NaN or infinite); "
            f"export the weights again"
        )
    return values
