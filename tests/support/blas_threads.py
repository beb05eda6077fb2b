"""Threads of the BLAS libraries of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import OpenBLASController, threadpool_info, threadpool_limits


def blas_threads() -> list[int]:
    """Return how many threads each library may use now."""
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@contextmanager
def three_blas_threads() -> Iterator[None]:
    """Let each library use three threads, even if the environment of the tests allows one."""
    with threadpool_limits(3, user_api="blas"):
        if hasattr(OpenBLASController, "clear_controlling_thread"):
            OpenBLASController.clear_controlling_thread()  # so that any thread may limit them
        assert set(blas_threads()) == {3}
        yield
