"""Direct convolution on general cores, max-pooled before it is stored."""
