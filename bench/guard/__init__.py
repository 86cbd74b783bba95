"""The regression guard: instruction counts of the hot path against a committed baseline."""
