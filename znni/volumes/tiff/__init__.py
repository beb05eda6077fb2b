"""Volumes in TIFF stacks."""
