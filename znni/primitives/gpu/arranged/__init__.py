"""Convolutions with gaps, and transposed ones, as dense ones of rearranged samples."""
