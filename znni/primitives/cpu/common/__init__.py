"""What several primitives stand on: threads, activations, vector code."""
