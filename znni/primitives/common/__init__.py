"""Code that primitives of every device share."""
