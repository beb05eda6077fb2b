"""Networks: the layers to compute, with their files and weights."""
