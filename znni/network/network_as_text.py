"""Networks as the text of network files, without the checks of files that people write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from znni.core.shapes import Vec3
from znni.network.activations import LEAKY_SLOPE
from znni.network.input_scaling import InputScaling, Normalization, Percentiles, ZScore
from znni.network.layer_geometry import ZERO
from znni.network.layers import (
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    Elementwise,
    GlobalPool,
    Layer,
    Maximum,
    Model,
    Multiply,
    Normalize,
    Padding,
    Pool,
    Upsample,
    Weighted,
)
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.normalization import EPS
from znni.network.window import Window

# The name of the join of several outputs.
OUTPUTS = "outputs"

# The name by which layers take the network's input, unless a layer has this name.
INPUT_NAME = "input"

KINDS: dict[type[Layer], str] = {
    Conv: "conv",
    ConvTranspose: "conv_transpose",
    Pool: "pool",
    GlobalPool: "global_pool",
    Upsample: "upsample",
    Affine: "affine",
    Concat: "concat",
    Add: "add",
    Multiply: "multiply",
    Maximum: "maximum",
    Model: "model",
}

INSTANCE_NORM, GROUP_NORM = "instance_norm", "group_norm"
ALL_KINDS = (*KINDS.values(), INSTANCE_NORM, GROUP_NORM)


def kind_of(layer: Layer) -> str:
    """Return the key of a layer in a network file."""
    if isinstance(layer, Normalize):
        return INSTANCE_NORM if layer.is_instance_norm else GROUP_NORM
    return KINDS[type(layer)]


def entry_of(layer: Layer) -> dict[str, Any]:
    """Return what a network file says of a layer under its kind."""
    match layer:
        case Conv():
            return _changed(
                {
                    "features": layer.out_features,
                    "kernel": layer.kernel,
                    "stride": layer.stride,
                    "padding": _sides(layer.padding),
                    "dilation": layer.dilation,
                    "groups": layer.groups,
                    **_named_activation(layer),
                }
            )
        case ConvTranspose():
            return _changed(
                {
                    "features": layer.out_features,
                    "kernel": layer.kernel,
                    "stride": layer.stride,
                    "padding": layer.padding,
                    "output_padding": layer.padding - layer.padding_after,
                    **_named_activation(layer),
                },
                keep=("stride",),
            )
        case Pool():
            return _changed(
                {
                    "window": layer.window,
                    "kind": layer.reduce,
                    "stride": layer.stride,
                    "padding": _sides(layer.padding),
                },
                drop=("stride",) * (layer.step == ZERO),
                keep=("stride",),
            )
        case Upsample():
            return _changed({"factor": layer.factor, "mode": layer.mode, "shift": layer.shift})
        case GlobalPool():
            return {"kind": layer.reduce}
        case Model():
            return {"file": layer.file, "features": layer.features, "sha256": layer.sha256}
        case Concat():
            return {}
        case Normalize():
            groups = {} if layer.is_instance_norm else {"groups": layer.groups}
            return groups | _changed({"eps": layer.eps}) | _named_activation(layer)
        case _:
            return _named_activation(layer)


def _sides(padding: Padding) -> Any:
    """Return padding as a network file has it."""
    if padding.before == padding.after:
        return padding.before
    return {"before": padding.before, "after": padding.after}


DEFAULTS: dict[str, Any] = {
    "stride": Vec3(1, 1, 1),
    "dilation": Vec3(1, 1, 1),
    "padding": ZERO,
    "output_padding": ZERO,
    "shift": ZERO,
    "groups": 1,
    "kind": "max",
    "eps": EPS,
}


def _changed(
    entry: dict[str, Any], keep: Sequence[str] = (), drop: Sequence[str] = ()
) -> dict[str, Any]:
    """Return an entry without the keys whose values are the defaults."""
    return {
        key: value
        for key, value in entry.items()
        if key not in drop and (key in keep or key not in DEFAULTS or DEFAULTS[key] != value)
    }


def _named_activation(layer: Weighted | Elementwise) -> dict[str, Any]:
    if layer.activation == "leaky_relu" and layer.slope != LEAKY_SLOPE:
        return {"activation": {"leaky_relu": layer.slope}}
    return {"activation": layer.activation}


def _normalization_entry(one: Normalization) -> object:
    match one:
        case ZScore():
            return "zscore"
        case Percentiles():
            return {"percentiles": [one.low, one.high]}
    return {"mean": one.mean, "std": one.std} | ({"clip": list(one.clip)} if one.clip else {})


def input_entry(scaling: InputScaling) -> dict[str, object]:
    """Return the entry of a network file that stands for the scaling of its input."""
    if not scaling.normalize:
        return {"scale": scaling.scale, "offset": scaling.offset}
    entries = list(map(_normalization_entry, scaling.normalize))
    entry: dict[str, object] = {"normalize": entries if len(entries) > 1 else entries[0]}
    if scaling.within != "all":
        entry["within"] = scaling.within
    if scaling.together:
        entry["together"] = True
    if scaling.statistics:
        entry["statistics"] = list(map(_normalization_entry, scaling.statistics))
    if scaling.crops:
        entry["crop"] = scaling.crop
    if scaling.box:
        entry["box"] = [list(scaling.box.start), list(scaling.box.stop)]
    return entry


def network_text(network: Network) -> str:
    """Return a network file on one line, in JSON, which is also YAML. It names no weights."""
    features = {"name": network.name, "in_features": network.in_features}
    nodes, outputs = list(network.nodes), [network.output]
    if nodes[-1] == Node(Concat(OUTPUTS), nodes[-1].inputs) and INPUT not in nodes[-1].inputs:
        outputs = list(nodes.pop().inputs)
    before = [INPUT, *(node.name for node in nodes)]
    layers = []
    for node, default in zip(nodes, before, strict=False):
        taken = [name or (INPUT if INPUT_NAME in before else INPUT_NAME) for name in node.inputs]
        sources = {} if node.inputs == (default,) else {"from": taken}
        entry = {kind_of(node.layer): entry_of(node.layer)}
        layers.append({"name": node.name, **sources, **entry})
    named = {} if outputs == before[-1:] else {"outputs": outputs}
    labels: dict[str, Any] = {"labels": dict(network.labels)} if network.labels else {}
    if network.has_regions:
        labels["regions"] = True
    window = {"window": window_entry(network.window)} if network.window else {}
    return json.dumps(
        features
        | {"input": input_entry(network.scaling), "layers": layers}
        | named
        | labels
        | window
    )


def window_entry(window: Window) -> dict[str, Any]:
    """Return the entry of a network file that stands for windows."""
    entry = asdict(window)
    for name in ("volume", "inside", "resampled", "in_order", "by_default", "together"):
        del entry[name]
    if (resampled := window.resampled) is None:
        return entry
    resampled_entry = {"from": resampled.source, "to": resampled.target}
    return entry | {"resampled": resampled_entry | {"order": resampled.orders}}
