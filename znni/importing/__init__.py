"""Converting networks of PyTorch, ONNX and ZNN to network files."""
