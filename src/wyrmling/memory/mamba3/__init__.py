"""Mamba-3 (one input, one output per head): naive (the truth), chunked, and the module around them."""
