"""Layers that join several values voxel by voxel."""
