"""Mamba-2: a short convolution, the state space recurrence, a gated norm, and the module around them."""
