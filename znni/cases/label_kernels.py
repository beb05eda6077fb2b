"""Loops over labels, which take several times as long in NumPy."""

from __future__ import annotations

from znni.primitives.cpu.common.numba_kernel import numba_kernel


@numba_kernel
def renumber(labels, table, out):  # type: ignore[no-untyped-def]
    """Write the number of each label of a flat array."""
    last = table.size - 1
    for i in range(labels.size):
        out[i] = table[min(labels[i], last)]


@numba_kernel
def overlay(labels, out):  # type: ignore[no-untyped-def]
    """Write the labels that are not 0 over others, both in flat arrays of one type."""
    for i in range(labels.size):
        out[i] = labels[i] if labels[i] != 0 else out[i]
