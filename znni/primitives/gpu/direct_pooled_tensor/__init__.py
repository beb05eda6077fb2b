"""Convolution on tensor cores, max-pooled before it is stored."""
