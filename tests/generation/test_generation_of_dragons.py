"""Generation with the real model: it is the forward pass, whatever the pieces, rows and pauses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.errors import ConfigError
from wyrmling.generation import (
    GenerationSettings,
    generate,
    load_conversation,
    model_fingerprint,
    save_conversation,
    window_length,
)
from wyrmling.model import Model

VOCABULARY = 23


def dragon(seed: int = 0, **values: object) -> Model:
    table = {
        "n_layer": 2,
        "n_embd": 16,
        "n_head": 2,
        "mlp_internal_dim_multiplier": 4,
        "dropout": 0.5,
        **values,
    }
    model = Model(ModelConfig.model_validate(table), VOCABULARY, seed=seed).to(torch.float64)
    with torch.no_grad():  # weights large enough for scores that differ
        for parameter in model.parameters():
            parameter.mul_(10)
    return model


def scores_after(model: Model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        hidden, _ = model(torch.tensor([tokens]))
        return model.logits(hidden[:, -1])[0]


@given(
    prompts=st.lists(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40), min_size=1, max_size=3
    ),
    chunk=st.integers(1, 50),
    positions=st.sampled_from(["rope", "alibi", "pope"]),
)
@settings(max_examples=20)
def test_greedy_generation_follows_the_forward_pass(
    prompts: list[list[int]], chunk: int, positions: str
) -> None:
    model = dragon(rotary_embedding=positions)
    chosen = GenerationSettings(temperature=0, max_tokens=10, prompt_chunk=chunk)
    for result in generate(model, prompts, chosen).finish():
        for n, token in enumerate(result.tokens, start=len(result.prompt)):
            scores = scores_after(model, (result.prompt + result.tokens)[:n])
            assert scores[token] >= scores.max() - 1e-9


@pytest.mark.parametrize("length", [15, 16, 17, 160])
def test_prompts_longer_than_a_block_simply_work(length: int) -> None:
    """A block's length minus one, a block, one more, ten blocks; then three blocks of new tokens."""
    torch.manual_seed(length)
    prompt = torch.randint(0, VOCABULARY, (length,)).tolist()
    texts = [
        generate(dragon(), [prompt], GenerationSettings(seed=2, max_tokens=48, prompt_chunk=chunk))
        .finish()[0]
        .tokens
        for chunk in (5, 16, 1000)
    ]
    assert texts[0] == texts[1] == texts[2]


def test_a_window_restarts_positions_and_memory() -> None:
    model, window = dragon(), 6
    result = generate(
        model, [[1] * 9], GenerationSettings(temperature=0, max_tokens=20, window=window)
    ).finish()[0]
    tokens = result.prompt + result.tokens
    for n in range(9, len(tokens)):
        scores = scores_after(model, tokens[:n][-window_length(n, window) :])
        assert scores[tokens[n]] >= scores.max() - 1e-9


def test_dropout_in_the_configuration_does_not_reach_generation() -> None:
    chosen = GenerationSettings(temperature=0, max_tokens=15)
    model = dragon().train()
    first, second = (generate(model, [[1, 2]], chosen).finish()[0].tokens for _ in range(2))
    assert first == second == generate(dragon(dropout=0.0), [[1, 2]], chosen).finish()[0].tokens
    assert all(module.training for module in model.modules())


def test_a_saved_conversation_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """The tokens are the same; sums in the state may have been taken in another order."""
    model = dragon().to(torch.float32)
    marks = {"model": model_fingerprint(model)}
    whole = generate(model, [[1, 2, 3]], GenerationSettings(seed=1, max_tokens=30), keep_state=True).finish()[
        0
    ]
    part = generate(model, [[1, 2, 3]], GenerationSettings(seed=1, max_tokens=11), keep_state=True).finish()[
        0
    ]
    assert part.state is not None
    save_conversation(tmp_path / "talk", part.state, [*part.prompt, *part.tokens], marks)
    talk = load_conversation(tmp_path / "talk", {"model": model_fingerprint(model)})
    rest = generate(
        model,
        [[]],
        GenerationSettings(seed=1, max_tokens=19),
        state=talk.state,
        history=[talk.tokens],
        keep_state=True,
    ).finish()[0]
    assert part.tokens + rest.tokens == whole.tokens
    assert rest.state is not None
    assert whole.state is not None
    for name, tensor in whole.state.to_tensors().items():
        torch.testing.assert_close(tensor, rest.state.to_tensors()[name], rtol=1e-4, atol=1e-4, msg=name)


def test_a_model_may_score_more_tokens_than_the_tokenizer_has() -> None:
    model = dragon(vocab_size=40)
    result = generate(
        model, [[1]], GenerationSettings(seed=0, max_tokens=40), vocab_size=VOCABULARY
    ).finish()[0]
    assert max(result.tokens) < VOCABULARY


@given(
    prompts=st.lists(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12), min_size=1, max_size=4
    ),
    window=st.one_of(st.none(), st.integers(1, 9)),
    positions=st.sampled_from(["rope", "alibi", "pope"]),
    continued=st.booleans(),
)
@settings(max_examples=20)
def test_the_decoder_and_the_model_write_the_same(
    prompts: list[list[int]], window: int | None, positions: str, continued: bool
) -> None:
    """Rows of unequal length that end at different tokens, with a window or without, from nothing or a state."""
    model = dragon(rotary_embedding=positions)
    state = history = None
    if continued:
        history = [[1, 2, 3, 4] for _ in prompts]
        with torch.no_grad():
            _, state = model(torch.tensor([before[:-1] for before in history]))
    results = []
    for decodes in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not decodes:
                patch.setattr("wyrmling.generation.reading.can_decode", lambda model: False)
            results.append(
                generate(
                    model,
                    prompts,
                    GenerationSettings(seed=1, max_tokens=30, window=window),
                    state=state,
                    history=history,
                    eos_id=5,
                    keep_state=True,
                ).finish()
            )
    for decoded, modelled in zip(*results, strict=True):
        assert (decoded.tokens, decoded.reason) == (modelled.tokens, modelled.reason)
        assert decoded.state is not None
        assert modelled.state is not None
        expected = modelled.state.to_tensors()
        for name, tensor in decoded.state.to_tensors().items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-10, atol=1e-10, check_stride=False)


def test_single_tokens_are_not_read_by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = dragon(), []
    forward = model.forward
    monkeypatch.setattr(
        model,
        "forward",
        lambda tokens, *rest, **named: lengths.append(tokens.shape[1]) or forward(tokens, *rest, **named),
    )
    generate(model, [[1, 2, 3], [4]], GenerationSettings(seed=1, max_tokens=9, prompt_chunk=2)).finish()
    assert lengths == [2, 1, 1]


@pytest.mark.parametrize("name", ["weight_dtype", "state_dtype"])
def test_rounded_decoding_writes_too_and_other_types_are_refused(name: str) -> None:
    model = dragon().to(torch.float32)
    chosen = GenerationSettings.of({"seed": 1, "max_tokens": 60, name: "bfloat16"})
    result = generate(model, [[1, 2]], chosen, keep_state=True).finish()[0]
    assert len(result.tokens) == 60
    assert result.state is not None
    assert result.state.layers[0]["rho"].dtype == torch.float32
    with pytest.raises(ConfigError, match=f"{name} must be float32 or bfloat16"):
        GenerationSettings.of({name: "int8"})
