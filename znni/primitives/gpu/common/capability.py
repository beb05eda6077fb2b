"""The compute capability of GPUs: what a primitive asks of one before it offers itself.

A primitive says which instructions it uses, as the capability that brought them; those of one
generation alone are asked for by equality.
"""

from __future__ import annotations

from znni.machine.machine import Device

# What came with them: matrix units for float16; for tf32 and bfloat16, with copies to shared memory
# that go on beside the threads; products of whole warp groups, which only Hopper has.
VOLTA, AMPERE, HOPPER = 70, 80, 90

# The oldest that CUDA 12 and its cuDNN run on.
OLDEST = 50


def capability_of(device: Device) -> int:
    """Of a GPU, 90 for 9.0; where a machine's file does not tell, what most GPUs in use have."""
    return device.capability or AMPERE
