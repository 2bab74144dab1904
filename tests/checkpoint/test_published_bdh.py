"""Weights of the published BDH come in under our names, exactly, and nothing else comes in with them."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from wyrmling.checkpoint.interchange import published_frequencies, read_published_bdh
from wyrmling.errors import CheckpointError

HEADS, WIDTH, NEURONS, VOCABULARY = 2, 6, 10, 13


def published(with_frequencies: bool = True) -> dict[str, Tensor]:
    """A state dict with the names and shapes of the published model."""
    torch.manual_seed(3)
    tensors = {
        "decoder": torch.randn(HEADS * NEURONS, WIDTH),
        "encoder": torch.randn(HEADS, WIDTH, NEURONS),
        "encoder_v": torch.randn(HEADS, WIDTH, NEURONS),
        "lm_head": torch.randn(WIDTH, VOCABULARY),
        "embed.weight": torch.randn(VOCABULARY, WIDTH),
    }
    if with_frequencies:
        tensors["attn.freqs"] = published_frequencies(NEURONS).view(1, 1, 1, NEURONS)
    return tensors


def prefixed(prefix: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()}


ENVELOPES: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "bare": lambda tensors: tensors,
    "model": lambda tensors: {"model": tensors, "step": 12, "optimizer": {"state": {}}},
    "state_dict": lambda tensors: {"state_dict": tensors},
    "nested": lambda tensors: {"model": {"state_dict": tensors}, "epoch": 3},
    "compiled": prefixed("_orig_mod."),
    "replica": prefixed("module."),
    "compiled replica": prefixed("_orig_mod.module."),
    "replica of compiled": prefixed("module._orig_mod."),
    "twice": prefixed("module._orig_mod.module._orig_mod."),
    "compiled in an envelope": lambda tensors: {"model": prefixed("_orig_mod.")(tensors)},
}


@pytest.mark.parametrize("envelope", ENVELOPES)
@pytest.mark.parametrize("with_frequencies", [True, False])
def test_every_way_of_saving_gives_the_same_import(
    tmp_path: Path, envelope: str, with_frequencies: bool
) -> None:
    source = published(with_frequencies)
    torch.save(ENVELOPES[envelope](source), tmp_path / "bdh.pt")
    imported = read_published_bdh(tmp_path / "bdh.pt", n_layer=4)
    for theirs, ours in [
        ("embed.weight", "embedding.weight"),
        ("encoder", "encoder"),
        ("encoder_v", "encoder_v"),
        ("decoder", "decoder"),
        ("lm_head", "lm_head"),
    ]:
        assert torch.equal(imported.tensors[ours], source[theirs])
    frequencies = imported.tensors["memory.frequencies"]
    assert frequencies.dtype == torch.float64
    assert torch.equal(frequencies, published_frequencies(NEURONS)[::2].double())
    assert len(imported.tensors) == 6
    sizes = {name: imported.settings[name] for name in ("n_layer", "n_embd", "n_head", "vocab_size")}
    assert sizes == {"n_layer": 4, "n_embd": 6, "n_head": 2, "vocab_size": 13}


@pytest.mark.parametrize("neurons", [12, 10])
def test_the_settings_tell_the_neurons_in_one_way(tmp_path: Path, neurons: int) -> None:
    """H*N = 24 is 4 times the width 6; 20 is no multiple of it."""
    tensors = published(with_frequencies=False)
    tensors["encoder"] = tensors["encoder_v"] = torch.zeros(HEADS, WIDTH, neurons)
    tensors["decoder"] = torch.zeros(HEADS * neurons, WIDTH)
    torch.save(tensors, tmp_path / "bdh.pt")
    found = read_published_bdh(tmp_path / "bdh.pt").settings
    told = (found["mlp_internal_dim_multiplier"], found["latent_total"])
    assert told == ((4, None) if neurons == 12 else (None, 20))


def test_an_ordered_dict_of_parameters_is_a_state_dict(tmp_path: Path) -> None:
    """What `model.state_dict()` returns is an OrderedDict with metadata, which weights-only loading knows."""
    model = nn.Module()
    for name, tensor in published().items():
        if name == "embed.weight":
            model.embed = nn.Embedding.from_pretrained(tensor)
        elif name == "attn.freqs":
            model.attn = nn.Module()
            model.attn.register_buffer("freqs", tensor)
        else:
            model.register_parameter(name, nn.Parameter(tensor))
    torch.save(model.state_dict(), tmp_path / "bdh.pt")
    imported = read_published_bdh(tmp_path / "bdh.pt")
    assert torch.equal(imported.tensors["encoder"], published()["encoder"])
    assert not any(tensor.requires_grad for tensor in imported.tensors.values())


@given(pairs=st.integers(1, 300))
def test_frequencies_follow_the_published_formula(pairs: int) -> None:
    """f_j = theta^(-2 floor(j/2) / N) / (2 pi), in float32, equal inside a pair."""
    neurons = 2 * pairs
    found = published_frequencies(neurons)
    assert found.dtype == torch.float32
    for j in {0, 1, neurons // 2, neurons - 1}:
        exact = (2.0**16) ** (-(2 * (j // 2)) / neurons) / (2 * math.pi)
        assert float(found[j]) == pytest.approx(exact, rel=2e-6)
    assert torch.equal(found[::2], found[1::2])


def test_frequencies_of_a_model_cast_to_bfloat16_are_computed_again(tmp_path: Path) -> None:
    torch.save({name: tensor.bfloat16() for name, tensor in published().items()}, tmp_path / "bdh.pt")
    imported = read_published_bdh(tmp_path / "bdh.pt")
    assert imported.tensors["encoder"].dtype == torch.bfloat16
    assert torch.equal(imported.tensors["memory.frequencies"], published_frequencies(NEURONS)[::2].double())


def test_the_unused_gate_of_the_published_model_is_dropped(tmp_path: Path) -> None:
    torch.save({**published(), "lm_gate": torch.randn(WIDTH, 1)}, tmp_path / "bdh.pt")
    assert "lm_gate" not in read_published_bdh(tmp_path / "bdh.pt").tensors


class Payload:
    """Creates a file when it is unpickled by someone who trusts it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.target}'",)


@pytest.mark.parametrize("way", ["torch", "pickle", "inside a state dict", "old torch format"])
def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path, way: str) -> None:
    target, file = tmp_path / "pwned", tmp_path / "bdh.pt"
    if way == "torch":
        torch.save(Payload(target), file)
    elif way == "pickle":
        file.write_bytes(pickle.dumps({"model": Payload(target)}))
    elif way == "inside a state dict":
        torch.save({"model": {**published(), "extra": Payload(target)}}, file)
    else:
        torch.save({**published(), "extra": Payload(target)}, file, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="is refused: it holds more than plain tensors") as caught:
        read_published_bdh(file)
    assert "\n" not in str(caught.value)
    assert not target.exists()


def test_the_payload_of_these_tests_would_have_worked(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "pwned")))
    assert (tmp_path / "pwned").exists()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_one_line(tmp_path: Path, share: float) -> None:
    file = tmp_path / "bdh.pt"
    torch.save(published(), file)
    os.truncate(file, int(file.stat().st_size * share))
    with pytest.raises(CheckpointError, match=r"bdh\.pt") as caught:
        read_published_bdh(file)
    assert "\n" not in str(caught.value)


def without(name: str) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def replaced(name: str, value: Any) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: {**tensors, name: value}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without("encoder_v"), "lacks encoder_v"),
        (
            replaced("blocks.0.attn.weight", torch.zeros(2)),
            r"beyond the published names, blocks\.0\.attn\.weight",
        ),
        (replaced("decoder", torch.zeros(HEADS * NEURONS, WIDTH + 1)), r"decoder is torch.float32 \[20, 7\]"),
        (replaced("encoder", torch.zeros(4)), "encoder has shape"),
        (replaced("lm_head", torch.zeros(WIDTH, VOCABULARY, dtype=torch.int64)), "lm_head is torch.int64"),
        (replaced("attn.freqs", torch.arange(10.0)), "differs inside a pair"),
        (replaced("attn.freqs", torch.zeros(8)), r"attn\.freqs has shape \[8\]"),
        (replaced("encoder", 3), "the entry 'encoder' is a int"),
        (lambda tensors: {**tensors, **prefixed("module.")(tensors)}, "twice"),
        (lambda tensors: list(tensors.values()), "holds no state dict"),
        (lambda tensors: {}, "holds no state dict"),
        (lambda tensors: {"model": {}}, "holds no state dict"),
    ],
)
def test_what_is_not_a_published_bdh_is_named(tmp_path: Path, change: Callable[..., Any], text: str) -> None:
    torch.save(change(published()), tmp_path / "bdh.pt")
    with pytest.raises(CheckpointError, match=text) as caught:
        read_published_bdh(tmp_path / "bdh.pt")
    assert "\n" not in str(caught.value)


def test_an_odd_number_of_neurons_has_no_pairs(tmp_path: Path) -> None:
    tensors = published(with_frequencies=False)
    for name in ("encoder", "encoder_v"):
        tensors[name] = tensors[name][:, :, :9]
    tensors["decoder"] = tensors["decoder"][:18]
    torch.save(tensors, tmp_path / "bdh.pt")
    with pytest.raises(CheckpointError, match="N has to be even"):
        read_published_bdh(tmp_path / "bdh.pt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no file .*bdh\.pt"):
        read_published_bdh(tmp_path / "bdh.pt")
