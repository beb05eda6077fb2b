"""A factor, a shift and an activation for each map."""
