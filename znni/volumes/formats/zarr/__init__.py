"""Volumes in Zarr, with OME-NGFF metadata or without."""

NAME = "Zarr"
ENDINGS = (".zarr",)
