"""Whole-image Fourier convolution by transforms of only the lines that are not zero."""
