"""Layers whose tensors are in the host's memory and that a GPU computes, or helps to compute."""
