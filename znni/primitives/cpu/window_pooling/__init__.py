"""Maxima and averages of windows at any stride."""
