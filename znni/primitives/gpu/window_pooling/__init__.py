"""Maxima and averages of windows at any stride, on a GPU."""
