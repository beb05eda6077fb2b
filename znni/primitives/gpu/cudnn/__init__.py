"""Convolution by NVIDIA's cuDNN."""
