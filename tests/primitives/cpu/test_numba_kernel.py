"""Compilation of numba kernels."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import numpy as np
from threadpoolctl import threadpool_info
from znni.primitives.cpu.common.activation import activate
from znni.primitives.cpu.common.workers import workers

def libraries():
    return sorted(pool["filepath"] for pool in threadpool_info() if pool["user_api"] == "blas")

workers(2).for_each(lambda _worker, _item: None, range(2))
before, row = libraries(), -np.ones(3, np.float32)
activate(row, np.float32(2), np.float32(0), 1)
print(row.tolist(), libraries() == before)
"""


def test_the_first_kernel_loads_no_blas_that_workers_do_not_know() -> None:
    """Workers look for BLAS libraries once, before their first task."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[1.0, 1.0, 1.0] True\n"
