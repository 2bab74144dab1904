"""Measurements against a plain implementation, interleaved, as ratios of medians."""
