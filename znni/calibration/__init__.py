"""Measured time: what to measure, where it is kept, and the cost model it gives."""
