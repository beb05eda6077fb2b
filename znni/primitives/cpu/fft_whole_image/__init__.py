"""Convolution by Fourier transforms of whole images, as in ZNNi."""
