"""The planner: it finds the fastest plan that fits into memory, from shapes and costs alone."""
