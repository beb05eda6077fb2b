"""Layers of packed values: float16, 8 maps of a voxel together, from layer to layer."""
