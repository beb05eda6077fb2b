"""Marks of dataclass fields that say how files of plans have them."""

# Files have such a field only if it differs from its default.
UNLESS_DEFAULT = {"unless default": True}
