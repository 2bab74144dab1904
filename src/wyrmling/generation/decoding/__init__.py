"""One token per row and call on the CPU: only what fires is read, and the past is written once in a while.

`Decoder` gives the values of `model(tokens, state)`; how it saves work is told in `decoder` and `memory`.
"""

from .decoder import Decoder, can_decode
from .drift import Drift, drift

__all__ = ["Decoder", "Drift", "can_decode", "drift"]
