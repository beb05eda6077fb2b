"""Arrays that a GPU's output is copied into are used again once nobody refers to them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from fake_cupy import CUPY, Array, Failure, fake_gpu
from numpy.typing import NDArray

from znni.core.logged import warn_once
from znni.engine.download import Download


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

    warn_once.cache_clear()
    monkeypatch.setattr(CUPY.cuda.runtime, "hostRegister", refused)
    np.testing.assert_array_equal(Download().of(values(2, 3)), values(2, 3))
    assert "copies to and from the GPU are slow" in caplog.text
