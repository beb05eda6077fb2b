"""Volumes in NumPy's .npy files."""

NAME = "NumPy"
ENDINGS = (".npy",)
