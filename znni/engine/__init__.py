"""The engine: runs a plan over a volume, reading, computing and writing at once."""
