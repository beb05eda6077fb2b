"""The hardware that runs the work: processors, GPUs, their memory and their clocks."""
