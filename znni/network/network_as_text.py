"""Networks as the text of network files, without the checks of files that people write."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from znni.network.activations import LEAKY_SLOPE
from znni.network.input_scaling import InputScaling, Normalization, Percentiles, ZScore
from znni.network.layers import (
    Concat,
    ConvTranspose,
    GlobalPool,
    Layer,
    Model,
    Normalize,
    Padding,
    PadLayer,
    Pool,
    Upsample,
)
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.window import Window

# The name of the join of several outputs.
OUTPUTS = "outputs"

# The name by which layers take the network's input, unless a layer has this name.
INPUT_NAME = "input"


def kind_of(layer: Layer) -> str:
    """Return the key of a layer in a network file."""
    if isinstance(layer, Normalize):
        if layer.by == "response":
            return "response_norm"
        return "instance_norm" if layer.is_instance_norm else "group_norm"
    return layer.kind


# The keys of layers' entries in their order, by the fields of layers that they stand for.
KEYS = {
    "out_features": "features",
    "kernel": "kernel",
    "window": "window",
    "factor": "factor",
    "reduce": "kind",
    "mode": "mode",
    "stride": "stride",
    "step": "stride",
    "padding": "padding",
    "dilation": "dilation",
    "groups": "groups",
    "shift": "shift",
    "eps": "eps",
}


def entry_of(layer: Layer) -> dict[str, Any]:
    """Return what a network file says of a layer under its kind: what differs from defaults."""
    if isinstance(layer, Model):
        return {"file": layer.file, "features": layer.features, "sha256": layer.sha256}
    if isinstance(layer, GlobalPool):
        return {"kind": layer.reduce}
    defaults = {field.name: field.default for field in fields(layer)}
    entry = {
        key: _sides(getattr(layer, name))
        for name, key in KEYS.items()
        if name in defaults and getattr(layer, name) != defaults[name]
    }
    if isinstance(layer, Upsample):
        entry["mode"] = layer.mode
    if isinstance(layer, Normalize) and layer.is_instance_norm:
        del entry["groups"]
    if isinstance(layer, ConvTranspose) and layer.padding != layer.padding_after:
        entry["output_padding"] = layer.padding - layer.padding_after
    if isinstance(layer, Pool | Upsample | PadLayer | Concat):
        return entry
    if layer.activation == "leaky_relu" and layer.slope != LEAKY_SLOPE:
        return entry | {"activation": {"leaky_relu": layer.slope}}
    return entry | {"activation": layer.activation}


def _sides(value: Any) -> Any:
    """Return a field's value, or padding as a network file has it."""
    if not isinstance(value, Padding):
        return value
    return value.before if value.before == value.after else value._asdict()


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
    if window.activation == "identity":
        del entry["activation"]
    if (resampled := window.resampled) is None:
        return entry
    resampled_entry: dict[str, Any] = {
        "from": resampled.source,
        "to": resampled.target,
        "order": resampled.orders,
    }
    if resampled.steps:
        resampled_entry |= {"steps": resampled.steps, "starts": resampled.starts}
    return entry | {"resampled": resampled_entry}
