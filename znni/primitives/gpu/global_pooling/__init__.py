"""Pooling of each map over a whole window, on a GPU."""
