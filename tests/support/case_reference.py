"""The steps of whole cases by SciPy, over the whole scan and in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from case_scans import NET, nibabel
from numpy.typing import NDArray
from scipy import ndimage
from window_networks import blended

from znni.cases.case import predict
from znni.cases.case_folder import Case
from znni.core.plan_options import Choices
from znni.core.resampling import Resampling
from znni.core.run_options import Options
from znni.core.shapes import Box, Vec3
from znni.inference.session import Session
from znni.network.input_scaling import AS_STORED
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.resampling.labels import resample_labels

OPTIONS = Options(limits=Choices(device="cpu", threads=1, costs="built-in"))


def network(**changes: str) -> Network:
    text = NET
    for key, value in changes.items():
        line = next(line for line in NET.splitlines() if line.startswith(f"{key}:"))
        text = text.replace(line, f"{key}: {value}")
    return network_from_text(text, "organs.yaml")


def resized(
    values: NDArray[np.float64], extents: tuple[int, ...], order: int
) -> NDArray[np.float64]:
    zoom = [new / old for new, old in zip(extents, values.shape, strict=True)]
    made = ndimage.zoom(values, zoom, order=order, mode="nearest", grid_mode=True)
    return np.asarray(made.clip(values.min(), values.max()))


def ct(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return (values.clip(-100, 150) - 20) / 50


def scores_within(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values by the mean and standard deviation of those in the filled mask."""
    mask = ndimage.binary_fill_holes(values != 0)
    inside = values[mask]
    return np.asarray(np.where(mask, (values - inside.mean()) / inside.std(), 0))


def reference(
    net: Network,
    values: NDArray[np.int16],
    spacing: tuple[float, float, float],
    normalize: Callable[[NDArray[np.float64]], NDArray[np.float64]] = ct,
    before: NDArray[np.uint8] | None = None,
) -> NDArray[np.float64]:
    """Return the output's maps (f, z, y, x) over the crop, and NaN around it.

    Args:
        net: the network.
        values: the scan.
        spacing: the extents of its voxels.
        normalize: returns the normalized crop.
        before: labels of the previous stage over the scan.
    """
    inside = np.argwhere(values)
    low, high = inside.min(axis=0), inside.max(axis=0) + 1
    box = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    crop = normalize(values[box].astype(np.float64))
    assert net.spacing is not None
    extents = tuple(
        round(old / new * extent)
        for extent, old, new in zip(
            crop.shape, spacing, net.spacing.over(spacing).extents, strict=True
        )
    )
    image = resized(crop, extents, 3).astype(np.float32)[np.newaxis]
    if before is not None:
        image = np.concatenate([image, one_hot(net, values[box], before[box], extents)])
    made = blended(replace(net, scaling=AS_STORED), image)
    maps = np.full((len(made), *values.shape), np.nan)
    for target, one in zip(maps, made, strict=True):
        target[box] = resized(one, crop.shape, 1)
    return maps


def one_hot(
    net: Network, crop: NDArray[np.int16], labels: NDArray[np.uint8], extents: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return a map for each label of the previous stage. Voxels outside of the mask vote, too."""
    assert net.case is not None
    assert net.case.previous_stage is not None
    outside = (labels == 0) & ~ndimage.binary_fill_holes(crop != 0)
    given = np.where(outside, np.int8(-1), labels.astype(np.int8))
    target = Vec3(*extents)
    resampling = Resampling(Vec3(*crop.shape), target, (1, 1, 1))
    whole = Box(Vec3(0, 0, 0), target)
    found = resample_labels(given, Vec3(0, 0, 0), resampling, whole, threads=1)
    return np.stack([found == label for label in net.case.previous_stage.labels]).astype(np.float32)


def check(
    net: Network,
    labels: NDArray[Any],
    values: NDArray[np.int16],
    spacing: tuple[float, ...],
    normalize: Callable[[NDArray[np.float64]], NDArray[np.float64]] = ct,
    before: NDArray[np.uint8] | None = None,
) -> None:
    """Check labels (z, y, x): those of the reference, unless two of its maps are nearly equal."""
    z, y, x = spacing
    maps = reference(net, values, (z, y, x), normalize, before)
    two = np.sort(maps, axis=0)[-2:]
    outside = np.isnan(maps[0])
    clear = ~outside & (two[1] - two[0] > 1e-4)
    assert clear.mean() > 0.3
    assert len(np.unique(labels)) == 3
    np.testing.assert_array_equal(labels[clear], maps.argmax(axis=0)[clear])
    assert not labels[outside].any()


def run(net: Network, files: tuple[Path, ...], out: Path) -> NDArray[Any]:
    """Return the labels (z, y, x) of a case."""
    return run_case(Case(files, out), net)


def run_case(case: Case, net: Network) -> NDArray[Any]:
    """Return the labels (z, y, x) of a case."""
    predict(case, net, random_weights(net, 7), Session(), OPTIONS)
    assert not list(case.out.parent.glob("*.case"))
    return np.asarray(nibabel.load(case.out).dataobj).T
