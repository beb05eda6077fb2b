"""Values and errors that every other package shares."""
