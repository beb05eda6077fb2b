"""Direct convolution of tiles in shared memory, alone or with its pooling."""
