"""What is computed: the network, its file and its weights."""
