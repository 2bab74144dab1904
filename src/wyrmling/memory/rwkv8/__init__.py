"""RWKV-8's decayed normalised recurrence: naive (the truth), chunked, the rule of its chunks, and the module."""
