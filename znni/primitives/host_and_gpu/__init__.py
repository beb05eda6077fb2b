"""Primitives for arrays in host memory that a GPU helps to compute."""
