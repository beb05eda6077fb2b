"""Affine maps on a GPU."""
