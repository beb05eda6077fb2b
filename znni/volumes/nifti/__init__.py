"""Volumes in NIfTI files, common in magnetic resonance and computed tomography."""
