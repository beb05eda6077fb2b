"""Direct convolution of a first layer, max-pooled before it is stored."""
