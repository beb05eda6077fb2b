"""The algorithms, one a file. ``reference`` is the definition of correct."""
