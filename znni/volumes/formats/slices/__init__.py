"""Volumes in folders of slices: a TIFF or PNG for each plane."""

NAME = "folder of slices"
ENDINGS: tuple[str, ...] = ()  # a folder without the ending of another format
