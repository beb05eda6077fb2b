"""Algorithms for GPUs, one a file, found as those of the CPU are."""
