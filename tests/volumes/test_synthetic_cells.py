"""Synthetic cells: equal seeds give equal volumes, and the truth says what each voxel is."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from paths import NETWORKS

from znni.cli.example import SEED
from znni.volumes.synthetic_cells import synthetic_cells


@pytest.mark.slow
def test_the_volume_of_the_demo_is_made_again() -> None:
    with h5py.File(NETWORKS / "cells.h5") as file:
        np.testing.assert_array_equal(synthetic_cells(SEED, (96, 160, 160)).raw, file["raw"][()])


@pytest.mark.slow
def test_membranes_are_dark_and_organelles_are_apart_from_them() -> None:
    for seed in range(3):
        cells = synthetic_cells(seed, (40, 56, 48))
        assert cells.raw.shape == cells.boundary.shape == cells.organelle.shape == (40, 56, 48)
        assert 0.05 < cells.boundary.mean() < 0.6
        assert 0 < cells.organelle.mean() < 0.4
        assert not (cells.boundary & cells.organelle).any()
        inside = ~(cells.boundary | cells.organelle)
        assert cells.raw[cells.boundary].mean() < cells.raw[inside].mean()
    other = synthetic_cells(seed + 1, (40, 56, 48))
    assert (other.raw != cells.raw).mean() > 0.5
