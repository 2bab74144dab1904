"""The yardstick is the well-known small GPT, and it is scored on every character once."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.small_gpt import Setting, SmallGPT

from benchmarks import small_gpt
from small_texts import small_text
from wyrmling.data.dataset import Dataset
from wyrmling.text.tokenizers import ByteTokenizer


def test_it_has_the_well_known_size_and_rates() -> None:
    assert SmallGPT(Setting(), 65).parameter_count() == 4 * 12 * 128**2 + 65 * 128 + 9 * 128
    setting = Setting()
    assert setting.rate(setting.warmup) == pytest.approx(setting.peak)
    assert setting.rate(setting.steps) == pytest.approx(setting.least)
    assert setting.rate(0) < setting.peak / 50


def test_it_sees_no_later_character() -> None:
    torch.manual_seed(0)
    model = SmallGPT(Setting(layers=2, width=16, length=8), 7)
    tokens = torch.randint(7, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 7
    torch.testing.assert_close(model(tokens)[:, :5], model(changed)[:, :5])


def test_it_learns_and_every_target_is_scored_once() -> None:
    data = Dataset.from_texts(small_text(), small_text()[:500], tokenizer=ByteTokenizer())
    assert data.validation is not None
    setting = Setting(layers=1, heads=2, width=16, length=16, rows=8, steps=40, warmup=5, peak=1e-2)
    text = torch.from_numpy(data.train.tokens.astype("int64"))
    losses = {}
    for steps in (0, setting.steps):
        chosen = Setting(**{**vars(setting), "steps": steps})
        model = small_gpt.train(text, 256, chosen, seed=1)
        losses[steps], targets = small_gpt.evaluate(model, data.validation, setting.length)
        assert targets == len(data.validation) - 1
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert losses[40] < losses[0] - 1
