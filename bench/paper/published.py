"""Throughput that was published for the four benchmark networks.

A. Zlateski, K. Lee and H. S. Seung, "ZNNi: maximizing the inference throughput of 3D convolutional
networks on CPUs and GPUs", SC'16 (arXiv:1606.05688): Table V, which compares it with other
software. Figures are rounded to whole voxels. Caffe is left out: its only figure is 1.348, for
n337, which is misprinted or in another unit. Their machine: four Xeon E7-8890 v3 with 72 cores and
256 GB, and a Titan X with 12 GB. It is other hardware than ours: these numbers say where the field
stood, not who is faster.
"""

from __future__ import annotations

from typing import Any

SOURCE = "ZNNi, SC'16"
NETWORKS = ("n337", "n537", "n726", "n926")

# Output voxels per second, in the order of NETWORKS.
VOXELS_PER_SECOND: dict[str, tuple[int | None, ...]] = {
    "cuDNN, all subsamplings": (22_935, 1_049, 13_520, 2_668),
    "ELEKTRONN": (122_668, None, 6_122, None),
    "ZNN": (34_335, 9_495, 31_355, 20_909),
    "ZNNi GPU-only": (671_782, 29_352, 97_257, 35_051),
    "ZNNi CPU-only": (262_131, 194_683, 300_312, 249_190),
    "ZNNi GPU + host RAM": (727_103, 147_965, 148_194, 104_946),
    "ZNNi CPU-GPU": (1_059_910, 334_163, 470_166, 375_295),
}

# The primitives of convolutions that Table IV found fastest on the GPU, in the order of layers.
GPU_LAYERS: dict[str, str] = {
    "n337": "CuDNN1, then CuDNN2",
    "n537": "CuDNN1, FFT, then CuDNN2",
    "n726": "CuDNN1, then FFT",
    "n926": "CuDNN1, CuDNN1, then FFT",
}
KINDS = {"CuDNN1": "cuDNN", "CuDNN2": "cuDNN", "FFT": "pruned FFT"}


def published_primitive(network: str, layer: str) -> str:
    """Return the kind of primitive that Table IV has for a layer, such as ``conv2``."""
    if layer.startswith("pool"):
        return "all fragments"
    names = GPU_LAYERS[network].replace("then ", "").split(", ")
    place = int(layer.removeprefix("conv")) - 1
    return KINDS[names[min(place, len(names) - 1)]]


def published(network: str, name: str) -> int | None:
    """Return the figure for a network and a program or strategy, if there is one."""
    return VOXELS_PER_SECOND[name][NETWORKS.index(network)] if network in NETWORKS else None


def published_rows(network: str) -> list[dict[str, Any]]:
    """Return what was published for a network; empty for any other network."""
    if network not in NETWORKS:
        return []
    column = NETWORKS.index(network)
    return [
        {
            "network": network,
            "name": name,
            "voxels_per_s": values[column],
            "measured": f"published: {SOURCE}",
        }
        for name, values in VOXELS_PER_SECOND.items()
        if values[column] is not None
    ]
