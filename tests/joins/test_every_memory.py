"""What holds for linear attention holds for every memory: cuts in time, accumulation, resume, generation, one set of
weights and one state per layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_resume_continues_bit_for_bit import LIVELY, StopAt, resume, tensors_of

import wyrmling
from agreement import assert_equal, build, naive, prefix_state, run
from wyrmling import Config, Model
from wyrmling.config import with_overrides
from wyrmling.errors import CheckpointError
from wyrmling.generation import GenerationSettings, generate
from wyrmling.generation.decoding.decoder import Decoder
from wyrmling.model import State
from wyrmling.numerics.roles import role_of

Make = Callable[..., Config]
MEMORIES = ("mamba2", "mamba3", "rwkv8")
SMALL = {"headdim": 4, "ngroups": 2, "d_state": 4, "chunk_size": 3}
SETTINGS = ("model.mamba.headdim=8", "model.mamba.d_state=4", "model.mamba.chunk_size=5")


def dragon(memory: str, executor: str = "auto", **changes: object) -> Model:
    kernel = {"memory_system": memory, "executor": executor}
    return build("rope", sequence_kernel=kernel, mamba=SMALL, **changes)


@pytest.mark.parametrize("memory", MEMORIES)
@settings(max_examples=8)
@given(data=st.data())
def test_every_cut_equals_the_loop(memory: str, data: st.DataObject) -> None:
    """Hidden states, final state, gradients of weights and initial state; odd lengths, any split, rows apart."""
    model = dragon(memory)
    model.layer_step.tile_tokens = data.draw(st.integers(1, 30), "tile")
    model.layer_step.recompute = data.draw(st.booleans(), "recompute")
    rows, length = data.draw(st.integers(1, 3), "rows"), data.draw(st.integers(1, 23), "length")
    drawn = data.draw(st.sets(st.integers(1, 22), max_size=4), "cuts")
    cuts = sorted(cut for cut in drawn if cut < length)
    seed = data.draw(st.integers(0, 1000), "seed")
    tokens = torch.randint(0, 13, (rows, length), generator=torch.Generator().manual_seed(seed))
    state = prefix_state(model, rows, seed) if data.draw(st.booleans(), "carried") else None
    assert_equal(run(model, tokens, state, cuts), naive(model, tokens, state))


@pytest.mark.parametrize("memory", MEMORIES)
def test_token_by_token_equals_the_whole_pass(memory: str) -> None:
    model = dragon(memory)
    tokens = torch.randint(0, 13, (2, 17))
    state = prefix_state(model, 2, 3)
    assert_equal(run(model, tokens, state, list(range(1, 17))), run(model, tokens, state, []))


@pytest.mark.parametrize("memory", MEMORIES)
def test_narrow_layers_obey_too(memory: str) -> None:
    model = dragon(
        memory,
        neurons=8,
        latent_fanout_schedule={"type": "late_layer", "base_latent_total": 16, "last_layers": 1},
    )
    tokens = torch.randint(0, 13, (2, 11))
    state = prefix_state(model, 2, 1)
    assert_equal(run(model, tokens, state, [4, 5]), naive(model, tokens, state))


@pytest.mark.parametrize("memory", MEMORIES)
def test_one_set_of_weights_and_one_state_per_layer(memory: str) -> None:
    model = dragon(memory)
    names = [name for name, _ in model.named_parameters()]
    assert names == sorted(set(names), key=names.index)
    state = model(torch.randint(0, 13, (2, 5)))[1]
    assert len(state.layers) == model.geometry.layers
    for layer, empty in zip(state.layers, model.initial_state(2).layers, strict=True):
        assert {name: part.shape for name, part in layer.items()} == {
            name: part.shape for name, part in empty.items()
        }
    bytes_of_doubles = model.geometry.state_bytes(2, element_size=8)
    assert bytes_of_doubles == state.nbytes()


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_copy_knows_what_its_parameters_are_for(memory: str) -> None:
    model = dragon(memory)
    twin = copy.deepcopy(model)
    for (name, one), (_, other) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert role_of(one, name) == role_of(other, name)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_reset_row_forgets_to_the_last_bit(memory: str) -> None:
    """The last token of a row's earlier document does not move the next document, wherever it ends."""
    model = dragon(memory)
    after = torch.randint(0, 13, (2, 9))
    reset = torch.tensor([True, False])
    for length in (2, 3, 4, 7):
        document = torch.randint(0, 13, (2, length))
        other = document.clone()
        other[0, -1] = (other[0, -1] + 1) % 13
        outcomes = []
        for before in (document, other):
            state = model(before)[1]
            outcomes.append(model(after, state, reset=reset))
        (hidden, state), (moved, moved_state) = outcomes
        assert torch.equal(hidden[0], moved[0])
        for layer, moved_layer in zip(state.layers, moved_state.layers, strict=True):
            for name in layer:
                assert torch.equal(layer[name][0], moved_layer[name][0]), name
        alone = model(after[:1])[0]
        torch.testing.assert_close(hidden[:1], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("memory", MEMORIES)
def test_stopped_and_resumed(tiny_config: Make, memory: str) -> None:
    config = tiny_config(*LIVELY, *SETTINGS, f"model.sequence_kernel={memory}")
    straight = wyrmling.train(config)
    first = wyrmling.train(config, callbacks=[StopAt(5)])
    second = wyrmling.train(resume(config, first.run.path))
    assert second.step == straight.step
    assert tensors_of(second.run.path, 12) == tensors_of(straight.run.path, 12)


@pytest.mark.parametrize("memory", MEMORIES)
def test_generation_follows_the_whole_pass(memory: str) -> None:
    """Greedy, token by token from states: prompts of unequal length, read in chunks."""
    model = dragon(memory)
    chosen = GenerationSettings(temperature=0, max_tokens=10, prompt_chunk=4)
    for result in generate(model, [[1, 2, 3, 4, 5, 6, 7], [5], [3, 3]], chosen).finish():
        whole = torch.tensor([result.prompt + result.tokens])
        with torch.no_grad():
            scores = model.logits(model(whole)[0])[0]
        for n, token in enumerate(result.tokens, start=len(result.prompt)):
            assert scores[n - 1, token] >= scores[n - 1].max() - 1e-9


@pytest.mark.parametrize("memory", MEMORIES)
def test_weights_of_another_memory_are_refused_in_one_line(tiny_config: Make, memory: str) -> None:
    done = wyrmling.train(tiny_config("training.max_iters=4"))
    place = f'training.init_checkpoint_path="{Path(done.run.path).as_posix()}"'
    other = with_overrides(
        tiny_config(*SETTINGS, f"model.sequence_kernel={memory}"),
        ["training.launch_mode=init_from_checkpoint", place],
    )
    with pytest.raises(CheckpointError, match=f'memory "linear_attention".*asks for "{memory}"') as caught:
        wyrmling.train(other)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_loop_is_always_there(tiny_config: Make, memory: str) -> None:
    """`executor = "reference"` trains token by token to the same loss."""
    losses = []
    for executor in ("auto", "reference"):
        kernel = f'model.sequence_kernel={{ memory_system = "{memory}", executor = "{executor}" }}'
        config = tiny_config(*SETTINGS, kernel, "training.max_iters=4", "runtime.dtype=float32")
        losses.append(wyrmling.train(config).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


SLOPE, SLOW_TOKENS = 1e-6, 65_536


@torch.no_grad()
@pytest.mark.parametrize("executor", ["auto", "dense", "chunked", "composed", "decoder", "rwkv8"])
def test_a_slow_decay_is_exact_after_many_tokens(executor: str) -> None:
    """float32 states of which nothing but the decay of 1e-6 a token takes anything: silent neurons write nothing.

    exp(-slope) rounded first, as a factor of every step or of a power, would be off by 1.3 % of the exponent.
    """
    changes = {"n_layer": 1, "rotary_embedding": "alibi", "alibi_slopes": (SLOPE, 3 * SLOPE)}
    if executor == "rwkv8":
        changes = {"n_layer": 1, "sequence_kernel": "rwkv8"}
    elif executor not in ("auto", "decoder"):
        changes["sequence_kernel"] = {"memory_system": "linear_attention", "executor": executor}
    model = build("rope", **changes).float()
    model.encoder.zero_()
    if executor == "rwkv8":
        model.memory.time_decay.fill_(-math.log(math.expm1(SLOPE)))  # sigmoid of it is exp(-slope)
    slopes = torch.tensor([SLOPE, SLOPE if executor == "rwkv8" else 3 * SLOPE], dtype=torch.float64)
    (first,) = model.initial_state(1).layers
    first = {
        name: torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) + 0.5
        for name, x in first.items()
    }
    state = State((first,), torch.zeros(1, dtype=torch.int64))
    if executor == "decoder":
        decoder = Decoder(model)
        decoder.load(state)
        for _ in range(SLOW_TOKENS // 32):
            decoder.step(torch.zeros(1, dtype=torch.int64))
        state, taken = decoder.state(), SLOW_TOKENS // 32
    else:
        taken = SLOW_TOKENS // 4
        for piece in torch.zeros(1, taken, dtype=torch.int64).split(1024, dim=1):
            _, state = model(piece, state)
    for name, before in first.items():
        kept = (state.layers[0][name].double() / before.double()).log().transpose(0, 1).flatten(1).mean(1)
        # the sums z of RWKV-8 pass through lam itself at every level of a chunk: 1e-8 each, of 64 slopes
        tolerance = 3e-3 if name == "norm" else 1e-3
        torch.testing.assert_close(kept, -slopes * taken, rtol=tolerance, atol=0)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("length", [1, 7])
def test_a_loss_on_part_of_a_state_gives_both_executors_the_same_gradients(
    memory: str, carried: bool, length: int
) -> None:
    """The same numbers, and none for the same weights: those that the part does not depend on."""
    rng = torch.Generator().manual_seed(0)
    before, tokens = (torch.randint(0, 13, (2, n), generator=rng) for n in (4, length))

    def gradients(executor: str) -> dict[tuple[str, str], torch.Tensor | None]:
        model = dragon(memory, executor, n_layer=1)
        state = model(before)[1].detach() if carried else None
        found = {}
        for part in model.initial_state(1).layers[0]:
            model.zero_grad(set_to_none=True)
            model(tokens, state)[1].layers[0][part].square().sum().backward()
            found.update({(part, name): p.grad for name, p in model.named_parameters()})
        return found

    found, expected = gradients("auto"), gradients("reference")
    assert any(gradient is None for gradient in expected.values())
    for place, gradient in expected.items():
        assert (found[place] is None) == (gradient is None), place
        if gradient is not None:
            torch.testing.assert_close(found[place], gradient, rtol=1e-10, atol=1e-10)
