"""Transposed convolution: one small convolution for each phase of the output."""
