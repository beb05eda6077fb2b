"""Samples beyond the volume, filled from those within, on a GPU."""
