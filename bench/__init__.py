"""Side-by-side measurements of znni's primitives and plans, and of its peers."""
