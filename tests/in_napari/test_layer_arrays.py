"""Arrays for layers read as NumPy's arrays do."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from znni.inference.viewing.view import View
from znni.napari import arrays
from znni.napari.arrays import Above, EveryNth, Threshold, with_coarse_levels
from znni.napari.layers import layer_of

VALUES = np.arange(2 * 9 * 7 * 10).reshape(2, 9, 7, 10)
KEYS: list[Any] = [
    (slice(None), 1, slice(None), slice(None)),
    (0, slice(1, 4), 2, slice(None)),
    (1, 2, 3, -1),
    (slice(0, 1), slice(0, 3, 2), slice(1, None), slice(None, 4)),
    (slice(None), slice(1, 3), 0, 2),
    (Ellipsis, slice(0, 2)),
    (1, Ellipsis),
    0,
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("step", [1, 2, 4])
def test_every_nth_voxel(key: Any, step: int) -> None:
    expected = VALUES[:, ::step, ::step, ::step]
    found = EveryNth(VALUES, step)
    assert found.shape == expected.shape
    assert (found.ndim, found.size, found.dtype) == (4, expected.size, expected.dtype)
    if step < 4 or key not in KEYS[1:3]:  # which lie beyond so few voxels
        np.testing.assert_array_equal(found[key], expected[key])


def test_a_volume_of_one_map_and_all_of_its_values() -> None:
    np.testing.assert_array_equal(np.asarray(EveryNth(VALUES[0], 3)), VALUES[0, ::3, ::3, ::3])


def test_reading_takes_few_voxels_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "DEPTH", 4)
    monkeypatch.setattr(arrays, "READ", 4 * 4 * 10)
    asked = []

    class Watched:
        shape, dtype = VALUES.shape[1:], VALUES.dtype

        def __getitem__(self, key: Any) -> Any:
            asked.append(tuple((each.start, each.stop) for each in key[:2]))
            return VALUES[0][key]

    np.testing.assert_array_equal(EveryNth(Watched(), 2)[:], VALUES[0, ::2, ::2, ::2])
    assert asked == [((z, min(z + 4, 10)), (y, min(y + 4, 8))) for z in (0, 4, 8) for y in (0, 4)]


def test_a_view_of_a_large_volume_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "LARGE", 2**18)
    monkeypatch.setattr(arrays, "READ", 2**20)
    with h5py.File(tmp_path / "large.h5", "w") as file:  # of 64 MiB, none of which is stored
        file.create_dataset("raw", (256, 256, 512), "u2", chunks=(64, 128, 256))
    made = layer_of(str(tmp_path / "large.h5"))
    assert made.settings["multiscale"]
    assert made.settings["contrast_limits"] == (0, 1)
    tracemalloc.start()
    try:
        np.asarray(made.data[-1])
        np.asarray(made.data[0][:, 10:200, 10:200][7])  # as napari does
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", KEYS)
def test_a_view_is_read_when_it_is_needed(key: Any) -> None:
    part = View(VALUES)[:, 1:, ::2][..., 1:]
    expected = VALUES[:, 1:, ::2][..., 1:]
    assert (part.shape, part.ndim, part.size) == (expected.shape, 4, expected.size)
    np.testing.assert_array_equal(np.asarray(part[key]), expected[key])


def test_labels_follow_the_threshold() -> None:
    values = np.linspace(0, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    threshold = Threshold(0.5)
    labels = Above(values, threshold)
    np.testing.assert_array_equal(labels[1], values[1] > 0.5)
    threshold.value = 0.8
    np.testing.assert_array_equal(np.asarray(labels), values > 0.8)
    stored = (values * 255).astype(np.uint8)
    np.testing.assert_array_equal(Above(stored, threshold)[:], stored > 0.8 * 255)


def test_only_large_volumes_get_coarse_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(with_coarse_levels(VALUES)) == 1
    monkeypatch.setattr(arrays, "LARGE", 60)
    shapes = [level.shape for level in with_coarse_levels(VALUES)]
    assert shapes == [(2, 9, 7, 10), (2, 5, 4, 5), (2, 3, 2, 3)]
