"""Volumes in NRRD files, which 3D Slicer and ITK write."""

NAME = "NRRD"
ENDINGS = (".nrrd", ".nhdr")
