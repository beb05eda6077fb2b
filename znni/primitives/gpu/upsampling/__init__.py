"""Nearest and trilinear upsampling on a GPU."""
