"""Overlap-save convolution, max-pooled before it is stored."""
