"""Measurements against plain implementations, interleaved, as ratios of medians: `python -m benchmarks`."""
