"""What algorithms for CPUs and for GPUs have in common."""
