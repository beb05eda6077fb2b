"""Networks of other libraries as network files: PyTorch, ONNX and ZNN."""
