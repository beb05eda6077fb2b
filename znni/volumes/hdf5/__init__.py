"""Volumes in HDF5 files."""
