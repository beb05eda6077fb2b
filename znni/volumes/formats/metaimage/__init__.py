"""Volumes in MetaImage files, which ITK writes."""

NAME = "MetaImage"
ENDINGS = (".mha", ".mhd")
