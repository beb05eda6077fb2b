"""Overlap-save convolution on tensor cores: transforms of tiles and products of their spectra."""
