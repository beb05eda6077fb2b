"""Primitives for NVIDIA GPUs, one package for each algorithm."""
