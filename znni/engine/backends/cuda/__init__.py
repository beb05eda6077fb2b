"""GPUs: their memory, streams and recorded work, and the layers that run there."""
