"""Code that GPU primitives share."""
