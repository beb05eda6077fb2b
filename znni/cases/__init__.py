"""Whole cases: from the files of a scan to its labels, by the steps of a network's training."""
