"""Code that CPU primitives share: threads, vectors, compiled code, activations."""
