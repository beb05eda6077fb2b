"""Volumes in NIfTI files, common in magnetic resonance and computed tomography."""

NAME = "NIfTI"
ENDINGS = (".nii", ".nii.gz")
