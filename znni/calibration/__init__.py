"""Costs that are measured: what to measure, where it is kept, and the model that it gives."""
