"""The engine: rows do not disturb each other, contexts have no limit, modes are put back."""

from __future__ import annotations

import pytest
import torch
from generation_fakes import Recurrent
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from wyrmling.errors import DataError
from wyrmling.generation import GenerationSettings, evaluating, generate, window_length
from wyrmling.model.state import State

PROMPT = st.lists(st.integers(0, 10), min_size=1, max_size=9)


def forward_scores(model: Recurrent, tokens: list[int], first: int) -> list[torch.Tensor]:
    """Scores for the tokens from `first` on, each from a whole forward pass over what comes before it."""
    return [model.scores_after(tokens[:n]) for n in range(first, len(tokens))]


@given(prompt=PROMPT, chunk=st.integers(1, 12), temperature=st.sampled_from([0.0, 1.0]))
@settings(max_examples=30)
def test_generation_is_the_forward_pass(prompt: list[int], chunk: int, temperature: float) -> None:
    """The scores that each token is drawn from are those of a whole pass over all tokens before it."""
    model = Recurrent()
    chosen = GenerationSettings(seed=1, max_tokens=7, prompt_chunk=chunk, temperature=temperature)
    result = generate(model, [prompt], chosen).finish()[0]
    assert len(result.tokens) == 7
    assert result.reason == "max_tokens"
    expected = forward_scores(model, prompt + result.tokens, len(prompt))
    for drawn_from, whole in zip(model.scores, expected, strict=True):
        torch.testing.assert_close(drawn_from[0], whole, rtol=1e-10, atol=1e-10)
    if temperature == 0:
        assert result.tokens == [int(whole.argmax()) for whole in expected]


@given(prompts=st.lists(PROMPT, min_size=1, max_size=5), others=st.lists(PROMPT, min_size=5, max_size=5))
@settings(max_examples=30)
def test_the_other_rows_do_not_change_a_row(prompts: list[list[int]], others: list[list[int]]) -> None:
    """Unequal prompts are read in groups and joined; each row gets the text it gets in any other company."""
    model, chosen = Recurrent(), GenerationSettings(seed=4, max_tokens=6)
    together = generate(model, prompts, chosen, eos_id=3).finish()
    for row, prompt in enumerate(prompts):
        company = [*others[:row], prompt, *others[row + 1 :]]
        assert generate(model, company, chosen, eos_id=3).finish()[row] == together[row]


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    def drawn(seed: int) -> list[int]:
        return (
            generate(Recurrent(), [[1, 2]], GenerationSettings(seed=seed, max_tokens=20)).finish()[0].tokens
        )

    assert drawn(5) == drawn(5)
    assert len({tuple(drawn(seed)) for seed in range(5)}) == 5


def test_rows_with_the_same_prompt_draw_differently() -> None:
    first, second = generate(Recurrent(), [[1], [1]], GenerationSettings(seed=0, max_tokens=20)).finish()
    assert first.tokens != second.tokens


def test_one_call_of_the_model_per_token_and_prompts_in_groups() -> None:
    model = Recurrent()
    prompts = [[1, 2, 3], [4], [5, 6, 7], [8]]
    generate(model, prompts, GenerationSettings(seed=0, max_tokens=5, prompt_chunk=2)).finish()
    assert model.reads == [(2, 2), (2, 1), (2, 1), *[(4, 1)] * 4]


def test_rows_that_have_finished_cost_nothing() -> None:
    """Every row ends at its first token 3; from then on the batch is smaller."""
    model = Recurrent()
    generation = generate(model, [[n] for n in range(8)], GenerationSettings(seed=2, max_tokens=30), eos_id=3)
    results = generation.finish()
    lengths = [len(result.tokens) for result in results]
    assert len(set(lengths)) > 2
    for size, (rows, _) in enumerate(model.reads):
        assert rows == sum(length > size for length in lengths)
    for result in results:
        ended = result.tokens[-1] == 3
        assert (result.reason == "eos") == ended
        assert 3 not in result.tokens[:-1]


def test_eos_is_an_ordinary_token_when_asked() -> None:
    chosen = GenerationSettings(seed=2, max_tokens=60, stop_at_eos=False)
    result = generate(Recurrent(), [[1]], chosen, eos_id=3).finish()[0]
    assert 3 in result.tokens[:-1]
    assert len(result.tokens) == 60


def test_without_a_limit_only_eos_ends_a_row() -> None:
    result = generate(Recurrent(), [[1]], GenerationSettings(seed=2, max_tokens=None), eos_id=3).finish()[0]
    assert result.reason == "eos"
    assert result.tokens[-1] == 3


def test_a_further_rule_can_end_a_row() -> None:
    seen: list[tuple[int, int]] = []

    def stop(row: int, token: int) -> str | None:
        seen.append((row, token))
        return "enough" if row == 1 and sum(r == 1 for r, _ in seen) == 3 else None

    first, second = generate(
        Recurrent(), [[1], [2]], GenerationSettings(seed=0, max_tokens=9), stop=stop
    ).finish()
    assert (len(first.tokens), first.reason) == (9, "max_tokens")
    assert (len(second.tokens), second.reason) == (3, "enough")


@pytest.mark.parametrize("length", [15, 16, 17, 160])
def test_a_prompt_of_any_length_is_read_in_pieces_with_the_same_scores(length: int) -> None:
    """A block's length minus one, a block, one more, ten blocks; then three blocks of new tokens."""
    torch.manual_seed(length)
    prompt = torch.randint(0, 11, (length,)).tolist()
    results = []
    for chunk in (7, 16, 1000):
        model = Recurrent()
        chosen = GenerationSettings(temperature=0, max_tokens=48, prompt_chunk=chunk)
        results.append(generate(model, [prompt], chosen).finish()[0].tokens)
        torch.testing.assert_close(model.scores[0][0], model.scores_after(prompt), rtol=1e-10, atol=1e-10)
    assert results[0] == results[1] == results[2]
    assert len(results[0]) == 48


@given(
    prompts=st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=20), min_size=1, max_size=3),
    window=st.integers(1, 9),
)
@settings(max_examples=30)
def test_a_window_is_a_fresh_read_of_the_last_tokens(prompts: list[list[int]], window: int) -> None:
    """Each token is drawn from the scores of an empty state that reads the last `window_length` tokens."""
    model = Recurrent()
    generation = generate(model, prompts, GenerationSettings(seed=1, max_tokens=25, window=window))
    for count, step in enumerate(generation):
        for place, row in enumerate(step.rows):
            before = (prompts[row] + generation.results[row].tokens)[: len(prompts[row]) + count]
            fresh = model.scores_after(before[-window_length(len(before), window) :])
            torch.testing.assert_close(model.scores[count][place], fresh, rtol=1e-10, atol=1e-10)
    assert len(generation.notes) == sum(len(prompt) > window for prompt in prompts)


@given(n=st.integers(1, 500), window=st.integers(1, 40))
def test_the_window_is_never_longer_than_asked_nor_shorter_than_its_half(n: int, window: int) -> None:
    length = window_length(n, window)
    assert length <= min(n, window)
    assert length >= min(n, (window + 1) // 2)
    assert window_length(n + 1, window) in (length + 1, (window + 1) // 2)


@pytest.mark.parametrize("window", [1, 2, 3, 8, 31])
def test_a_window_reads_about_two_tokens_per_token(window: int) -> None:
    model = Recurrent()
    generate(model, [[1] * 100], GenerationSettings(seed=0, max_tokens=300, window=window)).finish()
    assert sum(rows * length for rows, length in model.reads) <= window + 2 * 300 + window


def test_a_prompt_longer_than_the_window_is_announced() -> None:
    generation = generate(Recurrent(), [[1] * 5, [1] * 20], GenerationSettings(window=8))
    assert generation.notes == ["prompt 2 has 20 tokens, the window 8: its last 5 are read"]
    assert window_length(20, 8) == 5


def test_a_state_is_continued_and_never_changed() -> None:
    model = Recurrent()
    with torch.no_grad():
        _, state = model(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    copy = state.map(torch.clone)
    chosen = GenerationSettings(seed=3, max_tokens=8)
    continued = generate(model, [[7], [8, 9]], chosen, state=state).finish()
    whole = generate(model, [[1, 2, 3, 7], [4, 5, 6, 8, 9]], chosen).finish()
    assert [result.tokens for result in continued] == [result.tokens for result in whole]
    assert torch.equal(state.layers[0]["h"], copy.layers[0]["h"])
    assert state.position.tolist() == [3, 3]


def test_the_state_of_a_finished_row_has_read_all_but_the_last_token() -> None:
    model = Recurrent()
    prompts = [[1, 2], [3]]
    for result in generate(
        model, prompts, GenerationSettings(seed=5, max_tokens=6), keep_state=True
    ).finish():
        with torch.no_grad():
            _, expected = model(torch.tensor([result.prompt + result.tokens[:-1]]))
        assert isinstance(result.state, State)
        torch.testing.assert_close(result.state.layers[0]["h"], expected.layers[0]["h"])
        assert result.state.position.tolist() == expected.position.tolist()


def test_ids_that_the_tokenizer_lacks_are_never_drawn() -> None:
    model = Recurrent()
    with torch.no_grad():
        model.bias[7:] = 100.0
    result = generate(model, [[1]], GenerationSettings(seed=0, max_tokens=50), vocab_size=7).finish()[0]
    assert max(result.tokens) < 7


@pytest.mark.parametrize(
    ("prompt", "says"), [([], "is empty"), ([1, 11], "token 2 is 11"), ([-1], "token 1 is -1")]
)
def test_prompts_that_cannot_be_read_are_refused(prompt: list[int], says: str) -> None:
    with pytest.raises(DataError, match=says):
        generate(Recurrent(), [[1], prompt], GenerationSettings(), vocab_size=11)


def test_states_that_do_not_fit_are_refused() -> None:
    model = Recurrent()
    with pytest.raises(ValueError, match="1 rows for 2 prompts"):
        generate(model, [[1], [2]], GenerationSettings(), state=model.initial_state(1))
    with pytest.raises(ValueError, match="needs the history"):
        generate(model, [[1]], GenerationSettings(window=4), state=model.initial_state(1))


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def half_frozen() -> Recurrent:
    """In training mode, but for one module that was put into evaluation mode on purpose."""
    model = Recurrent(dropout=0.5)
    model.extra = nn.Sequential(nn.Dropout(0.1), nn.Linear(1, 1))
    model.train()
    model.extra[0].eval()
    return model


def test_dropout_is_off_in_generation_and_the_modes_are_put_back() -> None:
    model = half_frozen()
    before = modes(model)
    chosen = GenerationSettings(temperature=0, max_tokens=12)
    first = generate(model, [[1, 2]], chosen).finish()
    assert modes(model) == before
    assert generate(model, [[1, 2]], chosen).finish() == first
    plain = Recurrent(dropout=0.0)
    assert [result.tokens for result in generate(plain, [[1, 2]], chosen).finish()] == [first[0].tokens]


def test_modes_are_put_back_after_an_exception() -> None:
    model = half_frozen()
    before = modes(model)
    model.fail_at = 4
    with pytest.raises(RuntimeError, match="broke"):
        generate(model, [[1, 2]], GenerationSettings(max_tokens=12)).finish()
    assert modes(model) == before
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_model_can_be_trained_between_two_tokens() -> None:
    """Sampling in the middle of training leaves the mode, the graph and the random numbers alone."""
    model = half_frozen()
    before, random = modes(model), torch.get_rng_state()
    for _ in generate(model, [[1, 2]], GenerationSettings(seed=1, max_tokens=3)):
        assert modes(model) == before
        assert torch.equal(torch.get_rng_state(), random)
        hidden, _ = model(torch.tensor([[1, 2, 3]]))
        hidden.square().sum().backward()
        random = torch.get_rng_state()
    assert model.embedding.grad is not None


def test_evaluation_does_not_depend_on_the_dropout_rate() -> None:
    losses = set()
    for rate in (0.0, 0.1, 0.5):
        model = Recurrent(dropout=rate).train()
        for _ in range(2):
            with evaluating(model):
                hidden, _ = model(torch.tensor([[1, 2, 3, 4]]))
                losses.add(float(model.logits(hidden).logsumexp(-1).sum()))
        assert model.training
    assert len(losses) == 1
