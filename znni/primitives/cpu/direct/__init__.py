"""Direct convolution: sums over the taps of the kernel."""
