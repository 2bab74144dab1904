"""Positions of linear attention: rotation (RoPE), polar encoding (PoPE), decay (ALiBi).

A position is turned into phases with

    phase_t[j] = 2 pi frac(t f[j]),     f in cycles per token,

and the fractional part is taken in float64, so that a phase is exact to 1e-7 over the first billion tokens of a
stream (float32 would lose a tenth of a radian after a million). Rotation is one complex product per pair of neurons:
(x0 + i x1)(cos + i sin).

Sources: RoPE, Su et al. 2021, with theta = 2^16 and frequencies per pair as in the published BDH code; PoPE, "polar
coordinate position embeddings", magnitude softplus(x) and one frequency per neuron; ALiBi here is the described
system's form: a decay exp(-slope) of the whole state after every token, one per head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def rotary_frequencies(neurons: int, theta: float) -> Tensor:
    """Frequencies of RoPE, cycles per token: theta^(-2j/N) / 2 pi. Returns float64 [N/2], one per pair (2j, 2j+1)."""
    pair = torch.arange(neurons // 2, dtype=torch.float64)
    return theta ** (-2.0 * pair / neurons) / (2 * math.pi)


def polar_frequencies(neurons: int, theta: float) -> Tensor:
    """Frequencies of PoPE, cycles per token: theta^(-j/N) / 2 pi. Returns float64 [N], one per neuron."""
    neuron = torch.arange(neurons, dtype=torch.float64)
    return theta ** (-neuron / neurons) / (2 * math.pi)


def default_slopes(heads: int) -> Tensor:
    """The described system's ALiBi slopes 2^(-h/H). Returns float64 [H]; the decay of head h is exp(-slope)."""
    return 2.0 ** (-torch.arange(heads, dtype=torch.float64) / heads)


def rotors(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(2 pi i frac(t f)) for int64 positions [...] and float64 frequencies [P]; returns complex [..., P].

    `dtype` is the real dtype (float32 or float64) that the rotor will be used in. Computed in float64 on the
    positions' device.
    """
    cycles = positions.to(torch.float64).unsqueeze(-1) * frequencies
    angle = (cycles - torch.floor(cycles)) * (2 * math.pi)
    return torch.complex(torch.cos(angle), torch.sin(angle)).to(COMPLEX[dtype])


class PhaseTable:
    """Rotors of runs of consecutive positions, cheap to ask for again and again.

    The rotors of positions 0 .. n-1 are kept (a pure function of the frequencies; n is the longest run asked for).
    A run that starts at p is exp(i phase(p)) times the first rows of that table: one product, whose error is one
    rounding, however large p. So chunks and single tokens anywhere in a stream cost no cosine per entry.
    """

    def __init__(self, frequencies: Tensor) -> None:
        self._frequencies = frequencies.detach().to("cpu", torch.float64)
        self._tables: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def _first(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        table = self._tables.get((dtype, device))
        if table is None or len(table) < length:
            rows = max(64, 1 << (length - 1).bit_length())
            table = rotors(torch.arange(rows), self._frequencies, dtype).to(device)
            self._tables[dtype, device] = table
        return table[:length]

    def __call__(self, start: Tensor, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Rotors of positions start .. start+length-1.

        Args:
            start: int64 [B] on the CPU, the position of each row's first token.
        Returns: complex [length, P] if all rows start together, else [B, 1, length, P] (to broadcast over heads).
        """
        # tables outlive the call: made under inference mode they could not be used in training afterwards
        with torch.inference_mode(False), torch.no_grad():
            first = self._first(length, dtype, device)
            begin = start[:1] if bool((start == start[0]).all()) else start
            if len(begin) == 1 and int(begin[0]) == 0:
                return first
            offset = rotors(begin, self._frequencies, dtype).to(device)
            if len(begin) == 1:
                return offset * first
            return offset[:, None, None, :] * first


def rotate(x: Tensor, rotor: Tensor) -> Tensor:
    """Rotate adjacent pairs of the last axis. x real [..., T, N], rotor complex, broadcastable to [..., T, N/2].

    Half precision is rotated in float32 and rounded once.
    """
    wide = x if x.dtype in COMPLEX else x.float()
    wide = wide if wide.stride(-1) == 1 else wide.contiguous()
    turned = torch.view_as_complex(wide.unflatten(-1, (-1, 2))) * rotor
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def polar(x: Tensor, rotor: Tensor) -> Tensor:
    """PoPE: magnitude softplus(x), angle from the position. x [..., T, N] -> [..., T, 2N], (cos, sin) interleaved."""
    magnitude = F.softplus(x if x.dtype in COMPLEX else x.float())
    return (magnitude.unsqueeze(-1) * torch.view_as_real(rotor)).flatten(-2).to(x.dtype)
