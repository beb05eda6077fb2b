"""Convolution to few maps on tensor cores: products first, then sums of taps."""
