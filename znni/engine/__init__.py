"""Runs a plan: tiles of a volume, patches through the layers, fragments to dense output."""
