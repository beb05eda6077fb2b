"""Copies between host and GPU: which memory they use, and which events they keep."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from fake_cupy import CUPY, Array, Failure, Stream, fake_gpu
from numpy.typing import NDArray

from znni.core.shapes import Shape5, Vec3
from znni.engine.backends.cuda.transfer import Download, Upload
from znni.engine.executor import Fragments


@pytest.fixture(autouse=True)
def on_host() -> Iterator[None]:
    with fake_gpu():
        yield


def values(*shape: int, first: int = 0) -> NDArray[np.float32]:
    """Numbers of a GPU, in order."""
    count = int(np.prod(shape))
    return np.arange(first, first + count, dtype=np.float32).reshape(shape).view(Array)


def locked() -> int:
    """The bytes that are locked."""
    return sum(CUPY.cuda.runtime.locked.values())


def test_memory_is_used_again_once_no_view_is_left() -> None:
    download = Download()
    part = download.of(values(2, 3, 4))[:, 1:]
    other = download.of(values(2, 3, 4, first=100))
    np.testing.assert_array_equal(part, values(2, 3, 4)[:, 1:])
    address = part.ctypes.data - part.strides[1]
    del part
    assert download.of(values(4, first=7)).ctypes.data == address
    assert other[0, 0, 0] == 100


def test_larger_memory_replaces_what_is_free() -> None:
    before = locked()
    download = Download()
    download.of(values(1))
    few = locked() - before
    large = download.of(values(10**6))
    assert few < large.nbytes <= locked() - before < large.nbytes + few
    del large, download
    assert locked() == before


def test_what_the_system_does_not_lock_is_copied_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise Failure("operation not permitted")

    monkeypatch.setattr(CUPY.cuda.runtime, "hostRegister", refused)
    np.testing.assert_array_equal(Download().of(values(2, 3)), values(2, 3))
    assert "copies to and from the GPU are slow" in caplog.text


def test_settled_parts_keep_their_seconds_and_no_events() -> None:
    values = np.arange(24, dtype=np.float32).reshape(3, 1, 2, 2, 2)
    upload = Upload(Shape5(1, 1, 2, 2, 2), Stream(non_blocking=True))
    with upload.of(Fragments(values, (), Vec3.of(1))) as tensor:
        for item in range(3):
            found = tensor[item : item + 1].get()
            np.testing.assert_array_equal(found, values[item : item + 1])
    before = tensor.seconds
    assert min(before) > 0
    tensor.settle()
    assert (tensor.copied, tensor.computed) == ([], [])
    assert tensor.seconds == before
