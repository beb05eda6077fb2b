"""Whole cases: from the files of a scan to its labels, by the steps that a network was trained on."""
