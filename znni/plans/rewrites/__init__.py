"""Rules by which a plan computes a network otherwise than it is written, one rule a file.

Each rule has a pattern and a replacement that computes the same. There are three lists of rules:
``network_rules.py``, ``fusion_rules.py`` and ``packed_rules.py``. The planner goes through them. It
applies a rule where primitives compute the replacement, and where that is faster.
"""
