"""Direct convolution on a GPU's general cores."""
