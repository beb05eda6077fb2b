"""Volumes in HDF5 files."""

NAME = "HDF5"
ENDINGS = (".h5", ".hdf5")
