"""Compilation of numba kernels."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import numpy as np
from threadpoolctl import threadpool_info
from znni.primitives.cpu.common.activation import activate
from znni.primitives.cpu.common.workers import workers

def threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

found = []
workers(2).for_each(lambda _worker, _item: found.append(threads()), range(1))
row = -np.ones(3, np.float32)
activate(row, np.float32(2), np.float32(0), 1)
workers(2).for_each(lambda _worker, _item: found.append(threads()), range(1))
print(row.tolist(), set(found[0]), set(found[1]), len(found[1]) == len(threads()))
"""


def test_workers_limit_the_blas_that_the_first_kernel_loads() -> None:
    """Numba loads SciPy's with the first kernel, which may come after the first task."""
    several = os.environ | {"OPENBLAS_NUM_THREADS": "3"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True, env=several
    )
    assert done.stdout == "[1.0, 1.0, 1.0] {1} {1} True\n"
