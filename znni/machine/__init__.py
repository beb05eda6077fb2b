"""What it is computed on: processors, GPUs, their memory and their clocks."""
