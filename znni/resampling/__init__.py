"""Resampling of volumes to other voxels, box by box, by splines as in scipy and nnU-Net."""
