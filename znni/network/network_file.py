"""Networks as YAML files, which are checked and turned into a ``Network``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Vec3
from znni.core.yaml_file import LARGEST, Count, Entry, Name, YamlFile, is_count
from znni.network.layers import Activation, Conv, Layer, Pool
from znni.network.network import InputScaling, Network

FLOAT32_MAX = (2 - 2**-23) * 2.0**127


def _extents(value: object) -> Vec3:
    """Return three positive extents from ``3`` or ``[1, 5, 5]``."""
    three: Sequence[Any] = value if isinstance(value, list | tuple) else [value] * 3
    if len(three) != 3 or not all(map(is_count, three)):
        raise ValueError(f"give an integer from 1 to {LARGEST}, or three of them as [z, y, x]")
    return Vec3(*map(int, three))


def _finite(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -FLOAT32_MAX <= value <= FLOAT32_MAX
    ):
        raise ValueError("give a finite number")
    return float(value)


def _file_name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("give the name of a file")
    return str(value)


Extents = Annotated[Vec3, BeforeValidator(_extents)]
Finite = Annotated[float, BeforeValidator(_finite)]
FileName = Annotated[str, BeforeValidator(_file_name)]


# Reasons why options of other libraries' layers are errors: a window that slides over every voxel
# does not use them.
DENSE = "every voxel gets an output, and pooling makes the layers after it sparse; leave it out"
VALID = f"convolutions are valid, {option('border', 'same')} pads the whole volume; leave it out"
ONE_GROUP = "every map depends on all input maps: give grouped kernels as full ones with zeros"
FOLDED = "fold its scale and shift into the convolution's kernels and biases, and leave it out"


class _ConvEntry(Entry):
    unneeded: ClassVar[Mapping[str, str]] = {
        "padding": VALID,
        "stride": DENSE,
        "dilation": DENSE,
        "groups": ONE_GROUP,
        "batchnorm": FOLDED,
        "batch_norm": FOLDED,
    }
    features: Count
    kernel: Extents
    activation: Activation = "identity"


class _PoolEntry(Entry):
    unneeded: ClassVar[Mapping[str, str]] = {
        "stride": "it is the window; leave it out",
        "kernel": "a pooling has a window: and it steps by the window",
        "padding": VALID,
    }
    window: Extents


class _LayerEntry(Entry):
    unneeded: ClassVar[Mapping[str, str]] = {"batchnorm": FOLDED, "batch_norm": FOLDED}
    name: Name | None = None
    conv: _ConvEntry | None = None
    pool: _PoolEntry | None = None


class _InputEntry(Entry):
    scale: Finite = 1.0
    offset: Finite = 0.0


class _NetworkFile(Entry):
    name: Name
    in_features: Count = 1
    layers: Annotated[list[_LayerEntry], Field(min_length=1)]
    weights: FileName | None = None
    input: _InputEntry = _InputEntry()


def load_network(path: str | Path) -> Network:
    """Read a network file.

    Args:
        path: the path of a YAML file. It has ``name``, ``in_features``, ``layers`` and, optionally,
            ``weights`` (a file beside it) and ``input`` (scale and offset).

    Raises:
        InvalidInput: there is no such file, or it is not a network. The message names the line.
    """
    return _network_of(YamlFile(Path(path), "network"))


def network_from_text(text: str, name: str | Path) -> Network:
    """Return the network of a network file's text.

    Args:
        text: the text: YAML, or JSON as ``network_text`` returns it.
        name: the origin of the text, for messages.

    Raises:
        InvalidInput: the text is not a network. The message names the line.
    """
    return _network_of(YamlFile(Path(name), "network", text))


def network_text(network: Network) -> str:
    """Return a network file on one line, in JSON, which is also YAML. It names no weights."""
    features = {"name": network.name, "in_features": network.in_features}
    layers = [_entry_of(layer) for layer in network.layers]
    return json.dumps(features | {"input": asdict(network.scaling), "layers": layers})


def _entry_of(layer: Layer) -> dict[str, Any]:
    if isinstance(layer, Pool):
        return {"name": layer.name, "pool": {"window": layer.window}}
    conv = {
        "features": layer.out_features,
        "kernel": layer.kernel,
        "activation": layer.activation,
    }
    return {"name": layer.name, "conv": conv}


def _network_of(file: YamlFile) -> Network:
    entries = file.checked(_NetworkFile)
    for index, entry in enumerate(entries.layers):
        if (entry.conv is None) == (entry.pool is None):
            problem = "a layer is either a conv or a pool; give one of the two"
            raise file.refusal(("layers", index), problem)
    layers = _chain(entries)
    names = [layer.name for layer in layers]
    for index, name in enumerate(names):
        if name in names[:index]:
            problem = f"an earlier layer is also named {name!r}; rename one"
            raise file.refusal(("layers", index, "name"), problem)
    try:
        return Network.chain(
            name=entries.name,
            in_features=entries.in_features,
            layers=layers,
            scaling=InputScaling(entries.input.scale, entries.input.offset),
            weights=file.path.parent / entries.weights if entries.weights else None,
        )
    except InvalidInput as error:
        raise file.refusal(("layers",), str(error)) from None


def _chain(entries: _NetworkFile) -> tuple[Layer, ...]:
    """Return the layers with chained maps, and with default names (conv1, pool1, conv2, ...)."""
    layers: list[Layer] = []
    count = Counter[str]()
    features = entries.in_features
    for entry in entries.layers:
        kind = "conv" if entry.conv else "pool"
        count[kind] += 1
        name = entry.name or f"{kind}{count[kind]}"
        if entry.conv:
            conv = entry.conv
            layers.append(Conv(name, features, conv.features, conv.kernel, conv.activation))
            features = conv.features
        elif entry.pool:
            layers.append(Pool(name, entry.pool.window))
    return tuple(layers)
