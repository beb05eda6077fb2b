"""Convolution by pruned Fourier transforms of whole images, by cuFFT."""
