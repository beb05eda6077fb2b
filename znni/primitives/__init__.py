"""Primitives: the algorithms that compute one operation on one device."""
