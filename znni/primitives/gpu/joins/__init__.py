"""Sums, products, maxima and concatenations on a GPU."""
