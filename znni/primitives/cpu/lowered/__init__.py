"""Convolution lowered to matrix products."""
