"""Convolution of small kernels with few multiplications (Winograd, Toom and Cook)."""
