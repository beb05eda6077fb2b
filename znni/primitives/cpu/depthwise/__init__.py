"""Depthwise convolution and its transpose: each output map sees one input map."""
