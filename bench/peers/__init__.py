"""Other software that does the same work: PyTorch, on a CPU and on a GPU, MONAI and nnU-Net."""
