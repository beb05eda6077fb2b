"""Direct convolution as products of tensor cores."""
