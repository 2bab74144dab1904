"""The products of decoding against dense ones, the count that ends a history, and drift."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_dragons import random_tokens, small_dragon

from wyrmling.generation.decoding import drift, products
from wyrmling.generation.decoding.memory import history_pays


@given(
    heads=st.integers(1, 3),
    rows=st.integers(1, 10),
    neurons=st.integers(1, 9),
    width=st.integers(1, 7),
    share=st.floats(0, 1),
    large=st.booleans(),
)
@settings(max_examples=40)
def test_products_of_what_fires_are_the_dense_ones(
    heads: int, rows: int, neurons: int, width: int, share: float, large: bool
) -> None:
    generator = torch.Generator().manual_seed(heads + 10 * rows + 100 * neurons)
    table = torch.randn(heads, neurons, width, generator=generator, dtype=torch.float64)
    vectors = torch.randn(heads, rows, width, generator=generator, dtype=torch.float64)
    x = torch.rand(heads, rows, neurons, generator=generator, dtype=torch.float64)
    x = x * (torch.rand(x.shape, generator=generator) < share)
    everywhere = torch.einsum("hrd,hnd->hrn", vectors, table)
    limit = products.LARGE
    products.LARGE = 0 if large else limit
    try:
        torch.testing.assert_close(products.project(vectors, table), everywhere)
        found = products.firing(x, heads * rows)
        assert found.entries.tolist() == x.flatten().nonzero().flatten().tolist()
        of_head = torch.arange(heads * neurons).view(heads, 1, neurons).expand_as(x).flatten()
        places = of_head[found.entries]
        some = products.project_firing(vectors, table, found, places)
        if some is not None:
            torch.testing.assert_close(some, everywhere.flatten()[found.entries])
        sums = products.sum_rows(table.flatten(0, 1), places, found.starts, x.flatten()[found.entries])
        torch.testing.assert_close(sums.view(heads, rows, width), torch.einsum("hrn,hnd->hrd", x, table))
    finally:
        products.LARGE = limit


def last_that_pays(keys: int, width: int, share: float = 1.0) -> int:
    """The longest history that is cheaper to read than a state."""
    return next(n for n in range(1, 100_000) if not history_pays(n + 1, keys, width, share))


def test_a_history_pays_up_to_about_the_width_times_the_share() -> None:
    assert 200 < last_that_pays(8192, 256) < 300
    assert last_that_pays(8192, 256) > last_that_pays(8192, 128) > last_that_pays(8192, 128, share=0.2)
    assert last_that_pays(8192, 256, share=0.5) < 0.6 * last_that_pays(8192, 256)


def test_exact_decoders_do_not_drift_and_rounded_ones_a_little() -> None:
    model, tokens = small_dragon(torch.float32), random_tokens(120)
    assert all(
        found.reads == found.logits == found.state == 0 and found.agreement == 1
        for found in drift(model, tokens, state="float32", at=[5, 100])
    )
    short, long = drift(model, tokens, state="bfloat16", at=[1, 120, 1000])
    assert (short.tokens, long.tokens) == (1, 120)
    assert short.state == 0  # nothing was rounded yet
    assert 0 < long.state < 0.05
    assert 0 < long.reads < 0.05


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_nonzero_entries_are_counted(share: float) -> None:
    assert products.count_nonzero(torch.full((2, 3), share)) == 6 * share
    assert products.count_nonzero(torch.tensor([float("nan"), 0.0])) == 1
