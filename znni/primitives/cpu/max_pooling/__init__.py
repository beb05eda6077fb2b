"""Max-pooling: plain, and as max-pooling fragments."""
