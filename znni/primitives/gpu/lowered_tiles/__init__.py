"""Convolution of few output maps on tensor cores: products of all taps first, sums after."""
