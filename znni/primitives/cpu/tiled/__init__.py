"""The parts of the tiled FFT convolution (``fft_tiled``)."""
