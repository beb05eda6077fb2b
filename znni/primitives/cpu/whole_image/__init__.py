"""The parts of the whole-image FFT convolutions (``fft_data_parallel``, ``fft_task_parallel``)."""
