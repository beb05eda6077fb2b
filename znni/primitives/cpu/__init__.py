"""Primitives for CPUs, one package for each algorithm."""
