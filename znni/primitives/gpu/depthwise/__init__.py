"""Depthwise convolution and its transpose on a GPU."""
