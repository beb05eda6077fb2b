"""Overlap-save convolution on a GPU, with products on tensor cores."""
