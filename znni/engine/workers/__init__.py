"""Processes that compute patches, each on a device of its own, for one that reads and writes."""
