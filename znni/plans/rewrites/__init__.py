"""Rules by which a plan computes a network otherwise than it is written, one rule a file.

Each rule has a pattern and a replacement that computes the same. The planner goes through the lists
of rules. It applies a rule where primitives compute the replacement, and where that is faster.
"""
