"""Volumes in TIFF stacks."""

NAME = "TIFF"
ENDINGS = (".tif", ".tiff")
