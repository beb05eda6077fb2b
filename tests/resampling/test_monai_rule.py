"""MONAI's rule of resampling, against its own transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from import_cases import torch_or_skip
from numpy.typing import NDArray

from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.resampling.box_resampling import resample
from znni.resampling.monai_rule import monai_resampling

torch = torch_or_skip()
monai = pytest.importorskip("monai", reason="MONAI, whose rule is compared, is not installed")

SHAPE = Vec3(13, 22, 17)
SPACINGS = [
    ((2.5, 1.2, 1.0), (2.0, 1.5, 1.5)),
    ((0.7, 0.81, 0.9), (1.5, 1.5, 1.5)),
    ((1.0, 1.0, 1.0), (0.37, 1.0, 2.9)),
    ((3.0, 1.5, 1.5), (3.0005, 1.5004, 1.4)),
    ((3.0, 1.5, 1.5), (3.002, 1.501, 1.4995)),  # so near that nothing is resampled
]


def rotation(angle: float) -> NDArray[np.float64]:
    """Return a turn about an axis that is not one of space."""
    axis = np.array([0.3, -0.5, 0.8]) / np.linalg.norm([0.3, -0.5, 0.8])
    x, y, z = axis
    across = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.asarray(np.eye(3) + np.sin(angle) * across + (1 - np.cos(angle)) * across @ across)


def spaced(
    values: NDArray[np.float32], axes: NDArray[np.float64], wanted: tuple[float, ...], mode: Any
) -> tuple[Any, Any]:
    """Return values (f, z, y, x) by MONAI, as (f, x, y, z), and its transform."""
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = axes[:, ::-1], (-31.0, 17.5, 204.0)
    turned = np.ascontiguousarray(values.transpose(0, 3, 2, 1))
    tensor = monai.data.MetaTensor(torch.from_numpy(turned), affine=torch.from_numpy(affine))
    transform = monai.transforms.Spacing(pixdim=wanted[::-1], mode=mode)
    return transform(tensor), transform


def resampled(values: NDArray[np.float32], rule: Resampling) -> NDArray[np.float32]:
    if not rule.changes:
        return values
    whole = Box(Vec3(0, 0, 0), rule.target)
    box = rule.source_box(whole)
    return resample(values[:, *box.slices], box.start, rule, whole, threads=1)


@pytest.mark.slow_cases
@pytest.mark.parametrize(("spacing", "wanted"), SPACINGS)
@pytest.mark.parametrize("mode", ["bilinear", 3, "nearest"])
@pytest.mark.parametrize("axes", ["straight", "oblique", "float32"])
def test_a_scan_is_resampled_and_back_as_by_monai(
    spacing: tuple[float, float, float],
    wanted: tuple[float, float, float],
    mode: Any,
    axes: str,
) -> None:
    values = np.random.default_rng(1).standard_normal((2, *SHAPE), np.float32)
    if mode == "nearest":  # of two voxels that are equally near, MONAI takes one by rounding
        if axes == "float32":  # as in the middle plane, if both are centred
            pytest.skip("the middle plane is equally near to two others")
        z, y, x = wanted
        wanted = 1.0173 * z, 1.0173 * y, 1.0173 * x
    columns = (rotation(0.0 if axes == "straight" else 0.21) @ np.diag(spacing[::-1]))[:, ::-1]
    if axes == "float32":  # they are perpendicular to about 1e-7
        columns = columns.astype(np.float32).astype(np.float64)
    order = {"bilinear": 1, "nearest": 0}.get(mode, 3)
    there, back = monai_resampling(SHAPE, columns, wanted, order, order if order < 3 else 1)
    theirs, transform = spaced(values, columns, wanted, mode)
    assert tuple(there.target) == tuple(theirs.shape[:0:-1])
    found = theirs.numpy().transpose(0, 3, 2, 1)
    np.testing.assert_allclose(resampled(values, there), found, rtol=0, atol=2e-5)
    if order < 3:
        inverse = transform.inverse(theirs.clone()).numpy().transpose(0, 3, 2, 1)
        ours = resampled(np.ascontiguousarray(found), back)
        np.testing.assert_allclose(ours, inverse, rtol=0, atol=2e-5)


def test_voxels_that_are_nearly_those_wanted_are_kept() -> None:
    spacing, wanted = SPACINGS[-1]
    for rule in monai_resampling(SHAPE, np.diag(spacing), wanted, 1, 1):
        assert not rule.changes


def test_oblique_scans_of_float32_are_centred() -> None:
    columns = (rotation(0.21) @ np.diag([1.0, 1.2, 2.5]))[:, ::-1]
    there, _ = monai_resampling(SHAPE, columns, (2.0, 1.5, 1.5), 1, 1)
    assert there.starts == (0, 0, 0)
    rounded = columns.astype(np.float32).astype(np.float64)
    there, _ = monai_resampling(SHAPE, rounded, (2.0, 1.5, 1.5), 1, 1)
    assert there.steps is not None
    for start, step, size, extent in zip(
        there.starts, there.steps, there.target, SHAPE, strict=True
    ):
        assert start + step * size / 2 == pytest.approx(extent / 2)
