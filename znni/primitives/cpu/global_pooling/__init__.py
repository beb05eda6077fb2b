"""Pooling of each map over a whole window on the CPU."""
