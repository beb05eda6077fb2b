"""Samples beyond the volume, filled from those within."""
