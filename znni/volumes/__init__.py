"""Volumes: reading and writing. A file format is one module or package."""
