"""What a GPU gives for a plan, in a process of its own: code and libraries are in the promise."""

from __future__ import annotations

import subprocess
import sys

import pytest
from paths import NETWORKS

pytestmark = [pytest.mark.gpu, pytest.mark.whole_gpu]

NET = NETWORKS / "n537.yaml"

MEASURED = """
import sys
import numpy as np
import znni
from planner.search import Search
from znni.machine.cuda import cupy
from znni.engine.patch_runner import PatchRunner
from znni.machine.detect import detect_machine
from znni.primitives.catalogue import catalogue
from znni.plans.primitive import on_device
from znni.calibration.overhead_figures import run_overhead
from znni.network.weights import random_weights

def free():
    cupy().cuda.Device().synchronize()
    return int(cupy().cuda.Device().mem_info[0])

machine = detect_machine(gpu_memory="8GiB")
network = znni.load_network(sys.argv[1])
among = {
    name: primitive
    for name, primitive in on_device(catalogue(machine), "gpu").items()
    if name.startswith(("gpu_max_pooling", *sys.argv[2:]))
}
overhead = run_overhead(machine)
plan = Search(network, network.total_pooling * 4, machine, among, overhead).fastest()[0]
cupy().zeros(1)  # which begins with the GPU
before = free()
runner = PatchRunner(plan, among, random_weights(network, 0))
for seed in range(2):
    runner(np.random.default_rng(seed).random(plan.input_shape[1:], np.float32))
print(before - free(), plan.device_memory.total)
"""


@pytest.mark.parametrize("family", ["gpu_fft_pruned", "gpu_cudnn", "gpu_fft_tiled", "gpu_direct"])
def test_all_that_the_gpu_gives_was_promised(family: str) -> None:
    command = (sys.executable, "-c", MEASURED, str(NET), family)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken, promised = map(int, done.stdout.split())
    assert promised / 4 < taken <= promised
