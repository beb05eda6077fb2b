"""Finds the fastest plan under the memory allowed. Knows shapes and costs, never arrays."""
