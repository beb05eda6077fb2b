"""Convolutions by NVIDIA's cuDNN: number formats, layouts, pieces of a batch, choice of engine."""
