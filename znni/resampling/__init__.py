"""Volumes with other voxels: splines as scipy and nnU-Net interpolate, box by box."""
