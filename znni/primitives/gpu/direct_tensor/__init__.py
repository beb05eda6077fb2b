"""Direct convolution as products on tensor cores."""
