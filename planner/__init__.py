"""The planner: finds the fastest plan within memory, from shapes and costs alone."""
