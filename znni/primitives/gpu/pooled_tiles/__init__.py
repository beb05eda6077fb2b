"""Convolution and pooling in one, as products of tensor cores."""
