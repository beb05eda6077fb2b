"""Networks for whole cases with seeded weights, in files of znni's own: no nnU-Net is needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.unet_networks import nnunet, save_weights
from znni.network.network_as_text import network_text
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights

# How cases are processed: CT, at 1.5 mm.
CASE: dict[str, Any] = {
    "input": {
        "normalize": [{"mean": 40, "std": 210, "clip": [-630, 720]}],
        "crop": "nonzero",
    },
    "spacing": "1.5,1.5,1.5",
    "case": {"channels": ["CT"]},
}
NARROW = 8  # maps of each layer of a small network


def save_case_network(
    file: Path, window: int, labels: Sequence[str], *, wide: bool, mirror: str = "", seed: int = 0
) -> None:
    """Make a network file and the file of its weights.

    Args:
        file: the network file. The weights lie beside it.
        window: voxels of a window along each axis.
        labels: the names of its labels, without the background.
        wide: whether it is nnU-Net's, with 32 to 320 maps; else it has three layers.
        mirror: the axes along which windows are mirrored.
        seed: the seed of the weights.
    """
    maps, weights = len(labels) + 1, file.with_suffix(".safetensors")
    layers = _layers_of_nnunet(maps) if wide else _few_layers(maps)
    entries = {
        "name": file.stem,
        "in_features": 1,
        "labels": {name: number for number, name in enumerate(["background", *labels])},
        "window": {"size": [window] * 3, "like": "nnunet", "mirror": mirror},
        **CASE,
        **layers,
    }
    network = network_from_text(json.dumps(entries), str(file))
    save_weights(random_weights(network, seed), weights)
    file.write_text(json.dumps(entries | {"weights": weights.name}))


def save_set(folder: Path, networks: int, classes: int, window: int, *, wide: bool) -> Path:
    """Make several networks, and return the file that names them.

    Args:
        folder: the folder for all files.
        networks: their number.
        classes: the classes of each network, with the background.
        window: voxels of a window along each axis.
        wide: as for ``save_case_network``.
    """
    files = [folder / f"network{number}.yaml" for number in range(networks)]
    for seed, file in enumerate(files):
        labels = [f"{file.stem}-{label}" for label in range(1, classes)]
        save_case_network(file, window, labels, wide=wide, seed=seed)
    made = folder / "set.yaml"
    made.write_text(f"networks: {json.dumps([file.name for file in files])}\n")
    return made


def _layers_of_nnunet(maps: int) -> dict[str, Any]:
    """Return the layers of nnU-Net's network for a window of 128."""
    described = json.loads(network_text(nnunet(instance_norm=True, maps=maps)))
    return {"layers": described["layers"]}


def _few_layers(maps: int) -> dict[str, Any]:
    """Return three convolutions with instance norms between them."""
    norm = {"instance_norm": {"activation": "leaky_relu"}}
    features = [NARROW, NARROW, maps]
    convs = [{"conv": {"features": each, "kernel": 3, "padding": "same"}} for each in features]
    return {"layers": [convs[0], norm, convs[1], norm, convs[2]]}
