"""The rule by which nnU-Net chooses how a case is resampled."""

from __future__ import annotations

from znni.core.resampling import Resampling
from znni.core.shapes import Vec3

# A spacing is anisotropic if its largest number is more than this many times its smallest.
ANISOTROPY_THRESHOLD = 3.0

Spacing = tuple[float, float, float]


def resampled_extents(shape: Vec3, spacing: Spacing, new_spacing: Spacing) -> Vec3:
    """Return the extents of a volume with another spacing. Halves are rounded to even."""
    pairs = zip(shape, spacing, new_spacing, strict=True)
    return Vec3(*(round(old / new * extent) for extent, old, new in pairs))


def nnunet_resampling(
    shape: Vec3,
    spacing: Spacing,
    new_spacing: Spacing,
    order: int,
    order_z: int = 0,
    force_separate_z: bool | None = None,
    *,
    new_shape: Vec3 | None = None,
) -> Resampling:
    """Return how nnU-Net resamples a volume.

    If slices across the axis with the largest spacing are resampled one by one, this axis may have
    another order.

    Args:
        shape: the extents that the volume has.
        spacing: the distances between them, in the same order.
        new_spacing: the distances wanted.
        order: the order of the spline.
        order_z: the order along the axis with the largest spacing, if it is resampled apart.
        force_separate_z: whether that axis is resampled apart. None: if the spacing before or
            after is anisotropic.
        new_shape: the extents wanted. Default: the extents that follow from the spacings.
    """
    target = new_shape or resampled_extents(shape, spacing, new_spacing)
    separate = _separate_axis(spacing, new_spacing, force_separate_z)
    z, y, x = (order_z if axis == separate else order for axis in range(3))
    return Resampling(shape, target, (z, y, x), separate)


def _separate_axis(spacing: Spacing, new_spacing: Spacing, force: bool | None) -> int | None:
    """Return the axis to resample apart; None if there is none, or if several are coarsest."""
    if force is not None:
        decisive = spacing if force else None
    else:
        both = spacing, new_spacing
        anisotropic = (it for it in both if max(it) / min(it) > ANISOTROPY_THRESHOLD)
        decisive = next(anisotropic, None)
    if decisive is None:
        return None
    coarsest = [axis for axis in range(3) if max(decisive) / decisive[axis] == 1]
    return coarsest[0] if len(coarsest) == 1 else None
