"""The host: its memory, its clocks, and the layers that run there."""
