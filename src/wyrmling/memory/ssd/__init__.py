"""State space duality: the recurrence that the Mamba memories share. Naive (the truth) and chunked."""
