"""Plans and their parts: the vocabulary that the planner and the engine share."""
