"""Max-pooling on a GPU: plain, and as max-pooling fragments."""
