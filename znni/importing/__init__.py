"""Converting networks of PyTorch, ONNX, nnU-Net, MONAI, bioimage.io and ZNN to network files."""
