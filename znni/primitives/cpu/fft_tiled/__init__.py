"""Overlap-save convolution: Fourier transforms of tiles in the cache."""
