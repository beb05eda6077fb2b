"""Primitives that run on the CPU: numba, BLAS and FFTW on one pool of threads."""
