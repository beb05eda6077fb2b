"""Code shared by the primitives of all devices."""
