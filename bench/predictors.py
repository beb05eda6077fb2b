"""Windows of znni beside the predictors of MONAI and nnU-Net: the same values and labels?

All compute a small network with instance norm over noise, with the same weights. nnU-Net adds its
windows up in float16. So it is measured as it is, and with sums and weights in float32.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import typer

from bench.accuracy import gaps_of_labels
from bench.peers.nnunet_predict import float32_sums
from bench.peers.sliding_window import (
    NNUNET,
    NNUNET_IN_FLOAT32,
    in_windows_of_monai,
    nnunet,
)
from bench.record import Row
from bench.session import Out, Peer, Threads, ceilings_with, check_known, progress, report_all
from znni.core.option_types import WindowRules
from znni.core.shapes import Vec3
from znni.inference.inferer import Inferer
from znni.network.geometry import with_window
from znni.network.layers import Conv, Normalize, Padding
from znni.network.network import Network
from znni.network.weights import Float32, Weights, random_weights
from znni.network.window import Window

WINDOW = Vec3(8, 16, 12)
VOLUMES = (Vec3(19, 37, 25), Vec3(5, 41, 20), Vec3(6, 7, 9))  # the last are smaller in places
OVERLAPS = (0.25, 0.5, 0.625, 0.8)
TIE = 1e-5  # of the largest value: maps that are this close count as equal
PEERS: dict[str, WindowRules] = {
    "MONAI": "monai",
    NNUNET_IN_FLOAT32: "nnunet",
    NNUNET: "nnunet",
}

Classes = Annotated[list[int], typer.Option(min=1, help="Output maps; repeatable.")]
Batch = Annotated[list[int], typer.Option(min=1, help="Windows in one call of MONAI; repeatable.")]


@dataclass(frozen=True)
class _Case:
    """A network, its windows, and a volume (1, z, y, x)."""

    network: Network
    weights: Weights
    volume: Float32

    @property
    def window(self) -> Window:
        """The windows."""
        assert self.network.window is not None
        return self.network.window


def predictors_command(
    classes: Classes = [1, 3, 100],  # noqa: B006 - typer reads it
    batch: Batch = [1, 5],  # noqa: B006
    peer: Peer = None,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Compare outputs and labels of windows with the predictors of MONAI and nnU-Net."""
    check_known("peer", peer or [], PEERS)
    rows = []
    for name in peer or PEERS:
        for overlap in OVERLAPS:
            for mirror in ("", "zyx"):
                progress(f"{name}, overlap {overlap}, mirrored along {mirror or 'nothing'}")
                rows.append(_row(name, overlap, mirror, classes, batch, threads))
    report_all("predictors", [rows], [ceilings_with("cpu", threads or 1)], out)


def _row(
    name: str, overlap: float, mirror: str, classes: list[int], batches: list[int],
    threads: int | None,
) -> Row:  # fmt: skip
    """Return the largest differences over all volumes, classes and batches."""
    errors, apart, ties, voxels, cases = [0.0], 0, 0, 0, 0
    for count in classes:
        for extents in VOLUMES:
            window = Window(WINDOW, overlap, "gaussian", mirror, PEERS[name])
            case = _case(count, extents, window)
            ours = Inferer(case.network, case.weights, threads=threads)(case.volume)
            for batch in batches if name == "MONAI" else [1]:
                theirs = _theirs(name, case, batch)
                errors.append(float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
                gaps = gaps_of_labels(ours.argmax(0), theirs.argmax(0), theirs)
                apart, ties = apart + len(gaps), ties + int((gaps <= TIE).sum())
                voxels, cases = voxels + extents.volume, cases + 1
    return {
        "name": name,
        "overlap": overlap,
        "mirror": mirror or "none",
        "classes": ", ".join(map(str, classes)),
        "cases": cases,
        "error": max(errors),
        "voxels": voxels,
        "labels_apart": apart,
        "ties": ties,
    }


def _case(classes: int, extents: Vec3, window: Window) -> _Case:
    three, one, around = Vec3.of(3), Vec3.of(1), Padding(Vec3.of(1), Vec3.of(1))
    network = Network.chain(
        "small",
        1,
        (
            Conv("conv1", 1, 8, three, "identity", padding=around),
            Normalize("norm1", 8, 8, activation="leaky_relu"),
            Conv("conv2", 8, 8, three, "identity", padding=around),
            Normalize("norm2", 8, 8, activation="leaky_relu"),
            Conv("conv3", 8, classes, one, "identity"),
        ),
    )
    volume = np.random.default_rng(classes).standard_normal((1, *extents), np.float32)
    return _Case(with_window(network, window), random_weights(network, 0), volume)


def _theirs(name: str, case: _Case, batch: int) -> Float32:
    if name == "MONAI":
        return _monai(case, batch)
    return _nnunet(case, in_float32=name == NNUNET_IN_FLOAT32)


def _module(case: _Case) -> Any:
    from bench.peers.torch_graph import TorchGraph

    return TorchGraph(replace(case.network, window=None), case.weights).eval()


def _monai(case: _Case, batch: int) -> Float32:
    """Return what MONAI gives. It does not mirror, so its predictor does, window by window."""
    import torch

    module = _module(case)

    def mirrored(windows: Any) -> Any:
        copies = [
            module(windows.flip([axis + 2 for axis in axes])).flip([axis + 2 for axis in axes])
            for axes in case.window.flips
        ]
        return torch.stack(copies).mean(0)

    found = in_windows_of_monai(
        torch.from_numpy(case.volume), WINDOW, case.window.overlap, mirrored, batch
    )
    return np.asarray(found.numpy())


def _nnunet(case: _Case, *, in_float32: bool) -> Float32:
    """Return what nnU-Net's predictor gives for a volume that needs no preprocessing."""
    maps = case.network.out_features
    with float32_sums() if in_float32 else nullcontext():
        found = nnunet(_module(case), maps, case.window)(case.volume)
    return np.asarray(found.float().numpy())
