"""Volumes in Zarr, with OME-NGFF metadata or without."""
