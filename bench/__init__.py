"""Benchmarks: one command for each question, see ``README.md`` in this folder."""
