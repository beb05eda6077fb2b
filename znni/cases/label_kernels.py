"""Loops over labels, which take several times as long in NumPy."""

from __future__ import annotations

from znni.primitives.cpu.common.numba_kernel import numba_kernel


@numba_kernel
def renumber(labels, table, out):  # type: ignore[no-untyped-def]
    """Write the number of each label.

    Args:
        labels: the labels, in one axis.
        table: the number of each label, from 0 on.
        out: the numbers.
    """
    last = table.size - 1
    for i in range(labels.size):
        out[i] = table[min(labels[i], last)]


@numba_kernel
def overlay(labels, out):  # type: ignore[no-untyped-def]
    """Write the labels that are not 0 over others.

    Args:
        labels: the labels, in one axis.
        out: the others, of the same type.
    """
    for i in range(labels.size):
        out[i] = labels[i] if labels[i] != 0 else out[i]
