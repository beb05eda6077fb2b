"""Arrays for layers read as NumPy's arrays do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from znni.napari import arrays
from znni.napari.arrays import Above, EveryNth, Threshold, with_coarse_levels

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


def test_reading_takes_one_plane_at_a_time() -> None:
    asked = []

    class Watched:
        shape, dtype = VALUES.shape[1:], VALUES.dtype

        def __getitem__(self, key: Any) -> Any:
            asked.append(key)
            return VALUES[0][key]

    EveryNth(Watched(), 2)[:]
    assert [key[0] for key in asked] == [0, 2, 4, 6, 8]


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
    assert with_coarse_levels(VALUES) == [VALUES]
    monkeypatch.setattr(arrays, "LARGE", 60)
    shapes = [level.shape for level in with_coarse_levels(VALUES)]
    assert shapes == [(2, 9, 7, 10), (2, 5, 4, 5), (2, 3, 2, 3)]
