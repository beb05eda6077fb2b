"""What GPU primitives share."""
