"""Runs on many machines: who computes which block, and forecasts of time and cost."""
