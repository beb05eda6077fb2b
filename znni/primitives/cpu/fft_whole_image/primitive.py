"""The two whole-image FFT convolutions of ZNNi (section IV): data-parallel and task-parallel."""

from __future__ import annotations

from znni.machine.machine import Device
from znni.primitives.cpu.fft_whole_image.data_parallel import FftDataParallel
from znni.primitives.cpu.fft_whole_image.task_parallel import FftTaskParallel


def primitives(device: Device) -> tuple[FftDataParallel, FftTaskParallel]:
    """Return both convolutions."""
    return FftDataParallel(device), FftTaskParallel(device)
