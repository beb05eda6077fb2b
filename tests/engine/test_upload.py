"""Uploads to a GPU: what is kept of the events of their parts."""

from __future__ import annotations

import numpy as np
from fake_cupy import Stream, fake_gpu

from znni.core.shapes import Shape5
from znni.engine.upload import Upload


def test_settled_parts_keep_their_seconds_and_no_events() -> None:
    values = np.arange(24, dtype=np.float32).reshape(3, 1, 2, 2, 2)
    with fake_gpu():
        upload = Upload(Shape5(1, 1, 2, 2, 2), Stream(non_blocking=True))
        with upload.of(values) as parts:
            for item in range(3):
                found = parts[item : item + 1].get()
                np.testing.assert_array_equal(found, values[item : item + 1])
        before = parts.seconds
        assert min(before) > 0
        parts.settle()
        assert (parts.copied, parts.computed) == ([], [])
        assert parts.seconds == before
