"""Converting networks of PyTorch, ONNX, nnU-Net, bioimage.io and ZNN to network files."""
