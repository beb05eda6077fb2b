"""Marks of dataclass fields, for the files of plans."""

# A file has such a field only if it differs from its default.
UNLESS_DEFAULT = {"unless default": True}
