"""Upsampling by whole factors."""
