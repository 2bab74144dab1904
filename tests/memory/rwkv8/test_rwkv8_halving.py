"""The parts of the fast form: cuts, tables of powers, halves, sums and scores by halving."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rwkv8_cases import decays, firing
from torch import Tensor

from memory_cases import draw
from wyrmling.memory.rwkv8.forward import Cut, cuts
from wyrmling.memory.rwkv8.halving import Block, earlier, halves, later, padded, square
from wyrmling.memory.rwkv8.workspace import Workspace


@given(length=st.integers(1, 3000), chunk=st.integers(1, 300))
def test_cuts_cover_every_token_once(length: int, chunk: int) -> None:
    """In order, none longer than the chunk, and what is padded beside whole chunks adds less than half."""
    found = cuts(length, chunk)
    assert [t for cut in found for t in range(cut.start, cut.stop)] == list(range(length))
    sizes = [cut.stop - cut.start for cut in found]
    assert sizes[: length // chunk] == [chunk] * (length // chunk)
    assert all(0 < size < chunk and 2 * padded(size) < 3 * size for size in sizes[length // chunk :])


@given(
    heads=st.integers(1, 5),
    rows=st.integers(1, 40),
    length=st.integers(1, 200),
    neurons=st.sampled_from([4, 8192]),
)
def test_places_cover_heads_and_rows_once(heads: int, rows: int, length: int, neurons: int) -> None:
    cut = Cut((heads, rows, length, neurons), 64, torch.device("cpu"))
    assert [h for part in cut.heads for h in range(heads)[part]] == list(range(heads))
    assert [r for part in cut.rows for r in range(rows)[part]] == list(range(rows))


def test_halves_are_what_they_say() -> None:
    pair = torch.arange(2 * 3 * 2 * 8 * 5).view(2, 3, 2, 8, 5)
    for span in (1, 2, 4):
        together, others = halves(pair, span), halves(pair, span, meeting=False)
        assert torch.equal(together[0], later(pair[0], span))
        assert torch.equal(together[1], earlier(pair[1], span))
        assert torch.equal(others[0], earlier(pair[0], span))
        assert torch.equal(others[1], later(pair[1], span))


@pytest.mark.parametrize("size", [1, 2, 16, 64])
def test_two_tokens_meet_at_exactly_one_level(size: int) -> None:
    """The squares of all levels are the strictly lower triangle, each place once."""
    count = torch.zeros(3, size, size, dtype=torch.int64)
    span = 1
    while span < size:
        square(count, span).add_(1)
        span *= 2
    assert torch.equal(count, torch.ones_like(count).tril(-1))


@pytest.mark.parametrize("raw", [-100.0, -3.0, 5.0, 100.0])
def test_tables_of_powers(raw: float) -> None:
    log_decay = torch.nn.functional.logsigmoid(torch.full((2, 3), raw, dtype=torch.float64))
    powers = Workspace().powers(log_decay, 13)
    expected = torch.exp(log_decay[:, None, None] * torch.arange(14)[:, None])
    torch.testing.assert_close(powers.after(14), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(powers.before(5), expected[:, :, :5].flip(2), rtol=1e-13, atol=0)
    torch.testing.assert_close(powers.until(5), expected[:, :, 1:6].flip(2), rtol=1e-13, atol=0)
    torch.testing.assert_close(powers.at(7), expected[:, :, 7], rtol=1e-13, atol=0)
    both = torch.stack([powers.after(4), powers.before(4)]).unsqueeze(3)
    assert torch.equal(powers.meeting(4), both)


def filled(size: int) -> tuple[Block, Tensor, Tensor, Tensor]:
    """A block of two heads and three rows, its queries, its keys, and log lam."""
    log_decay = decays(2, 5)
    workspace = Workspace()
    powers = workspace.powers(log_decay, size)
    block = workspace.block((2, 3, size, 5), powers, torch.float64, gradients=True)
    queries, keys = firing(2, 3, size, 5, seed=1), firing(2, 3, size, 5, seed=2)
    block.queries.copy_(queries)
    block.keys.copy_(keys)
    return block, queries, keys, log_decay


@pytest.mark.parametrize("size", [1, 2, 8, 32])
def test_scores_are_sums_over_pairs(size: int) -> None:
    """And afterwards queries and keys are scaled for the states."""
    block, queries, keys, log_decay = filled(size)
    block.find_scores()
    age = torch.arange(size)
    lag = (age[:, None] - 1 - age).clamp_min(0)
    weights = torch.exp(log_decay[:, None, None] * lag[:, :, None])  # [H, P, P, N]
    expected = torch.einsum("hbtn,hbsn,htsn->hbts", queries, keys, weights).tril(-1)
    torch.testing.assert_close(block.scores.view_as(expected), expected, rtol=1e-12, atol=1e-12)
    powers = torch.exp(log_decay[:, None, None] * age[:, None])
    torch.testing.assert_close(block.queries, queries * powers)
    torch.testing.assert_close(block.keys, keys * powers.flip(2))


@pytest.mark.parametrize("size", [1, 2, 8, 32])
def test_sums_before_each_token(size: int) -> None:
    block, _, keys, log_decay = filled(size)
    z = first = draw(2, 3, 5)
    block.decayed_sums(first)
    for t in range(size):
        torch.testing.assert_close(block.sums[:, :, t], z, rtol=1e-12, atol=1e-12)
        z = log_decay.exp()[:, None] * z + keys[:, :, t]


@pytest.mark.parametrize("size", [1, 2, 8, 32])
def test_sums_from_the_end(size: int) -> None:
    block, _, _, log_decay = filled(size)
    x = draw(2, 3, size, 5)
    block.sums.copy_(x)
    block.decayed_sums_from_the_end()
    y = torch.zeros_like(x[:, :, 0])
    for t in reversed(range(size)):
        y = x[:, :, t] + log_decay.exp()[:, None] * y
        torch.testing.assert_close(block.sums[:, :, t], y, rtol=1e-12, atol=1e-12)
