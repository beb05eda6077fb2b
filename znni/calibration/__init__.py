"""Measured times: choosing calls to measure, keeping the results, and predicting from them."""
