"""Two convolutions of one tap in one pass over memory."""
