"""Masks must lie where the volume does, if the files of both say where."""

from __future__ import annotations

from typing import Any

import nibabel
import numpy as np
import pytest
from command_line import refused, succeeds, voxels

from znni.core.volume import Affine, Grid
from znni.volumes.same_place import lie_apart

MICROMETERS = ("micrometer",) * 3
NANOMETERS = ("nanometer",) * 3
HERE = Grid((2, 1, 1), (10, 20, 30), MICROMETERS)


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        (HERE, False),
        (Grid(), False),  # says nothing
        (Grid((2, 1, 1), (0, 0, 0), MICROMETERS), False),  # no origin
        (Grid((2000, 1000, 1000), (10_000, 20_000, 30_000), NANOMETERS), False),
        (Grid((2.001, 1, 1), (10, 20, 30.05), MICROMETERS), False),  # rounded
        (Grid((3, 2, 1), (1, 2, 3)), False),  # no units
        (Grid((2, 1, 1.5), (10, 20, 30), MICROMETERS), True),
        (Grid((2, 1, 1), (10, 20, 31), MICROMETERS), True),
        (Grid((2, 1, 1), (10, 20, 30), NANOMETERS), True),
    ],
)
def test_what_both_say_must_agree(other: Grid, *, apart: bool) -> None:
    assert lie_apart(HERE, other) == lie_apart(other, HERE) == apart


def test_orientations_must_agree() -> None:
    rows = (1, 0, 0, 5, 0, 1, 0, 6, 0, 0, 2, 7)
    one = Grid((2, 1, 1), (0, 0, 0), ("millimeter",) * 3, Affine(rows, 1))
    rounded = Grid(one.scale, one.translation, one.units, Affine((*rows[:11], 7.001), 2))
    flipped = Grid(one.scale, one.translation, one.units, Affine((-1, *rows[1:]), 1))
    assert not lie_apart(one, rounded)
    assert lie_apart(one, flipped)
    assert not lie_apart(one, Grid())


def test_an_orientation_without_a_unit_counts_as_in_the_unit_of_the_other() -> None:
    rows = (0.5, 0, 0, 5, 0, 1, 0, 6, 0, 0, 2, 7)
    scale, millimeters = (2, 1, 0.5), ("millimeter",) * 3
    one = Grid(scale, units=millimeters, affine=Affine(rows, 1))
    flipped = (-0.5, *rows[1:])
    identity = (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)
    thousand = tuple(1000 * number for number in rows)
    for other, apart in (
        (Grid(scale, affine=Affine(rows, 2)), False),
        (Grid(scale, affine=Affine(flipped, 2)), True),
        (Grid(affine=Affine(identity, 2)), False),  # nobody has set it
        (Grid(units=millimeters, affine=Affine(identity, 2)), True),
        (Grid((2000, 1000, 500), units=MICROMETERS, affine=Affine(thousand, 2)), False),
        (Grid((2000, 1000, 500), units=MICROMETERS, affine=Affine(rows, 2)), True),
    ):
        assert lie_apart(one, other) == lie_apart(other, one) == apart, other


@pytest.mark.usefixtures("small_case", "fake_primitives")
def test_a_flipped_mask_is_refused() -> None:
    def write(name: str, values: Any, first: float) -> None:
        image = nibabel.Nifti1Image(values.T, np.diag([first, 1, 1, 1]))
        image.header.set_xyzt_units("mm")
        image.to_filename(name)

    write("in.nii", voxels(), 1)
    write("mask.nii", np.ones_like(voxels()), 1)
    write("flipped.nii", np.ones_like(voxels()), -1)
    run = ("infer", "in.nii", "--net", "tiny.yaml", "--out", "out.h5", "--mask")
    said = refused(*run, "flipped.nii")
    assert "the mask lies elsewhere than the volume: the affine [-1.0, 0.0, 0.0, 0.0," in said
    assert "the volume has the affine [1.0, 0.0, 0.0, 0.0," in said
    succeeds(*run, "mask.nii")
