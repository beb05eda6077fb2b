"""Measurements that reproduce tables of papers, and the figures that were published there."""
