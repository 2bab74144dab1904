"""What each option of `[training.init_transfer]` does to each tensor, one by one and in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from wyrmling.checkpoint.contents import model_tensors
from wyrmling.checkpoint.transfer import Lender, TransferReport, plan_transfer
from wyrmling.config.schema.init_transfer import InitTransfer
from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.errors import CheckpointError
from wyrmling.model import Model
from wyrmling.text.tokenizers import ByteTokenizer, CharTokenizer, PretokenizedTokenizer, Tokenizer

Tensors = dict[str, Tensor]
LETTERS = CharTokenizer("abcdefgh", include_unknown=False)
BACKBONE = ("encoder", "encoder_v", "decoder", "norm.gain", "norm.bias")


def config(**changes: Any) -> ModelConfig:
    tables = {"normalization": {"kind": "layer_norm", "affine": True}}
    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "latent_total": 16}
    return ModelConfig.model_validate({**sizes, **tables, **changes})


def trained(seed: int, tokenizer: Tokenizer = LETTERS, **changes: Any) -> Model:
    """A model as training leaves it: no tensor is what it began with."""
    model = Model(config(**changes), tokenizer.vocab_size, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1 * seed)
    return model


def lender(model: Model, tokenizer: Tokenizer = LETTERS, name: str = "old") -> Lender:
    tensors = {key: tensor.clone() for key, tensor in model_tensors(model).items()}
    return Lender(name, model.config, tokenizer, tensors, Path(f"runs/{name}/checkpoint/step-000000004"), 4)


def transfer(
    options: dict[str, Any],
    *,
    old: Lender | None = None,
    interface: Lender | None = None,
    tokenizer: Tokenizer = LETTERS,
    **changes: Any,
) -> tuple[Tensors, Tensors, TransferReport]:
    """What the weights become, what the fresh ones were, and the report."""
    new = config(**changes)
    model = Model(new, tokenizer.vocab_size, seed=11)
    fresh = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    table = InitTransfer.model_validate(options)
    plan = plan_transfer(old or lender(trained(1)), interface, new, tokenizer, table, seed=5)
    report = plan.load(model)
    assert [name for name, _, _ in report.fates] == list(fresh)
    return model_tensors(model), fresh, report


def fates(report: TransferReport) -> dict[str, str]:
    return {name: fate for name, _, fate in report.fates}


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other.to(one), rtol=1e-6, atol=1e-7)


def test_without_options_everything_is_kept_bit_for_bit() -> None:
    old = lender(trained(1))
    now, _, report = transfer({}, old=old)
    for name, tensor in now.items():
        assert torch.equal(tensor, old.tensors[name]), name
    assert report.lines() == ["kept: all 8 tensors"]


def test_rms_of_the_backbone_is_matched_where_there_is_one_to_match() -> None:
    """A bias that begins at zero has no size: the transferred one stays."""
    old = lender(trained(1))
    now, fresh, report = transfer({"match_fresh_rms": True}, old=old)
    for name in ("encoder", "encoder_v", "decoder", "norm.gain"):
        factor = fresh[name].square().mean().sqrt() / old.tensors[name].square().mean().sqrt()
        close(now[name], old.tensors[name] * factor)
        assert fates(report)[name] == f"scaled by {float(factor):.3g}"
    for name in ("norm.bias", "embedding.weight", "lm_head", "memory.frequencies"):
        assert torch.equal(now[name], old.tensors[name])


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("backbone_blend_alpha", BACKBONE),
        ("decoder_blend_alpha", ("decoder",)),
        ("norm_blend_alpha", ("norm.gain", "norm.bias")),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_blends_reach_their_tensors_and_no_others(option: str, names: tuple[str, ...], share: float) -> None:
    old = lender(trained(1))
    now, fresh, report = transfer({option: share}, old=old)
    for name, tensor in now.items():
        expected = (
            share * old.tensors[name] + (1 - share) * fresh[name] if name in names else old.tensors[name]
        )
        close(tensor, expected)
        assert fates(report)[name] == (
            f"blended {share:g} with {1 - share:g} fresh" if name in names else "kept"
        )


def test_fresh_top_heads_are_the_last_heads_and_their_decoder_stays() -> None:
    old = lender(trained(1))
    now, fresh, report = transfer({"fresh_top_heads": 1}, old=old)
    for name in ("encoder", "encoder_v"):
        assert torch.equal(now[name][0], old.tensors[name][0])
        assert torch.equal(now[name][1], fresh[name][1])
        assert fates(report)[name] == "fresh in the last 1 head"
    assert torch.equal(now["decoder"], old.tensors["decoder"])
    memory = {"sequence_kernel": "rwkv8"}
    slow = lender(trained(1, **memory))
    now, fresh, _ = transfer({"fresh_top_heads": 1}, old=slow, **memory)
    assert torch.equal(now["memory.time_decay"][0], slow.tensors["memory.time_decay"][0])
    assert torch.equal(now["memory.time_decay"][1], fresh["memory.time_decay"][1])


def test_a_fresh_decoder_and_a_fresh_norm() -> None:
    now, fresh, report = transfer({"preserve_fresh_decoder": True, "preserve_fresh_norm": True})
    for name in ("decoder", "norm.gain", "norm.bias"):
        assert torch.equal(now[name], fresh[name])
        assert fates(report)[name] == "fresh"
    assert fates(report)["encoder"] == "kept"


def test_the_order_is_rms_backbone_heads_decoder_and_norm() -> None:
    """Each step sees what the one before left: all at once is one after the other."""
    old = lender(trained(1))
    options = {
        "match_fresh_rms": True,
        "backbone_blend_alpha": 0.6,
        "fresh_top_heads": 1,
        "decoder_blend_alpha": 0.5,
        "norm_blend_alpha": 0.25,
    }
    now, fresh, report = transfer(options, old=old)
    for name in BACKBONE:
        m, r = old.tensors[name].double(), fresh[name].double()
        wanted = float(r.square().mean().sqrt())
        m = m * (wanted / float(m.square().mean().sqrt())) if wanted else m
        m = 0.6 * m + 0.4 * r
        if name.startswith("encoder"):
            m[1] = r[1]
        share = {"decoder": 0.5, "norm.gain": 0.25, "norm.bias": 0.25}.get(name)
        close(now[name], m if share is None else share * m + (1 - share) * r)
    assert fates(report)["norm.bias"] == "blended 0.6 with 0.4 fresh, then blended 0.25 with 0.75 fresh"


def test_memories_with_parameters_blend_by_name() -> None:
    memory = {"sequence_kernel": "mamba2", "mamba": {"headdim": 4, "d_state": 4}}
    old = lender(trained(1, **memory))
    now, fresh, _ = transfer({"backbone_blend_alpha": 0.5}, old=old, **memory)
    names = [name for name in now if name.startswith("memory.")]
    assert len(names) == 8
    for name in names:
        close(now[name], (old.tensors[name] + fresh[name]) / 2)


def test_an_interface_checkpoint_lends_its_surfaces() -> None:
    old, other = lender(trained(1)), lender(trained(2), name="other")
    options = {"preserve_interface_input_embedding": True, "preserve_interface_output_head": True}
    now, _, report = transfer(options, old=old, interface=other)
    for name, tensor in now.items():
        assert torch.equal(tensor, (other if name in ("embedding.weight", "lm_head") else old).tensors[name])
    assert fates(report)["lm_head"] == fates(report)["embedding.weight"] == "interface"
    assert report.to_json()["interface_checkpoint_step"] == 4


def test_an_interface_checkpoints_head_is_blended_in() -> None:
    old, other = lender(trained(1)), lender(trained(2), name="other")
    now, _, report = transfer({"interface_output_head_blend_alpha": 0.25}, old=old, interface=other)
    close(now["lm_head"], 0.75 * old.tensors["lm_head"] + 0.25 * other.tensors["lm_head"])
    assert torch.equal(now["embedding.weight"], old.tensors["embedding.weight"])
    assert fates(report)["lm_head"] == "blended 0.75 with 0.25 interface"


def test_an_interface_checkpoint_stands_for_the_fresh_weights() -> None:
    old, other = lender(trained(1)), lender(trained(2), name="other")
    options = {"backbone_blend_alpha": 0.5, "preserve_fresh_decoder": True, "fresh_top_heads": 1}
    now, _, report = transfer(options, old=old, interface=other)
    assert torch.equal(now["decoder"], other.tensors["decoder"])
    close(now["norm.gain"], (old.tensors["norm.gain"] + other.tensors["norm.gain"]) / 2)
    assert torch.equal(now["encoder"][1], other.tensors["encoder"][1])
    assert torch.equal(now["lm_head"], old.tensors["lm_head"])
    assert fates(report)["decoder"] == "interface"


def test_one_that_only_lends_surfaces_may_have_any_backbone() -> None:
    other = lender(trained(2, n_head=4, latent_total=64, sequence_kernel="rwkv8"), name="other")
    now, _, _ = transfer({"preserve_interface_output_head": True}, interface=other)
    assert torch.equal(now["lm_head"], other.tensors["lm_head"])
    with pytest.raises(CheckpointError, match='other was trained with the memory "rwkv8"'):
        transfer({"backbone_blend_alpha": 0.5}, interface=other)


def test_known_tokens_keep_their_rows_and_new_ones_are_fresh() -> None:
    old = lender(trained(1))
    other = CharTokenizer("ahxc", include_unknown=False)  # in order: a c h x
    now, fresh, report = transfer({}, old=old, tokenizer=other)
    for name, axis in (("embedding.weight", 0), ("lm_head", 1)):
        assert torch.equal(now[name].select(axis, 3), fresh[name].select(axis, 3))
        for new, before in ((0, 0), (1, 2), (2, 7)):
            assert torch.equal(now[name].select(axis, new), old.tensors[name].select(axis, before))
    assert report.lines() == [
        "kept: encoder, encoder_v, decoder, norm.gain, norm.bias, memory.frequencies",
        "3 of 4 tokens mapped, the rest fresh: lm_head, embedding.weight",
        "tokens: 3 of 4 tokens are known; new: 'x'; 5 of the old ones are left behind",
    ]


def test_a_vocabulary_larger_than_the_tokenizers_keeps_its_spare_rows() -> None:
    roomy = lender(trained(1, vocab_size=12))
    now, fresh, _ = transfer({}, old=roomy, vocab_size=14)
    assert torch.equal(now["embedding.weight"][:12], roomy.tensors["embedding.weight"])
    assert torch.equal(now["embedding.weight"][12:], fresh["embedding.weight"][12:])
    assert torch.equal(transfer({}, old=roomy)[0]["lm_head"], roomy.tensors["lm_head"][:, :8])


def test_a_tied_model_lends_its_head_and_none_is_taken_by_one() -> None:
    tied = lender(trained(1, tie_embeddings=True))
    now, _, report = transfer({}, old=tied)
    assert torch.equal(now["lm_head"], tied.tensors["embedding.weight"].t())
    assert fates(report)["lm_head"] == "the embedding, to which it was tied"
    with pytest.raises(CheckpointError, match="lm_head has no place in this model"):
        transfer({}, tie_embeddings=True)


def test_vocabularies_with_nothing_in_common_need_a_word() -> None:
    ids = PretokenizedTokenizer(8)
    old = lender(trained(1, tokenizer=ids), ids)
    with pytest.raises(
        CheckpointError, match=r"pretokenized tokenizer, this run a char.*fresh_surfaces = true$"
    ):
        transfer({}, old=old)
    now, fresh, report = transfer({"fresh_surfaces": True}, old=old)
    for name in ("embedding.weight", "lm_head"):
        assert torch.equal(now[name], fresh[name])
        assert fates(report)[name] == "fresh"
    assert torch.equal(now["encoder"], old.tensors["encoder"])
    other = lender(trained(2), name="other")
    options = {"preserve_interface_input_embedding": True, "preserve_interface_output_head": True}
    now, _, _ = transfer(options, old=old, interface=other)
    assert torch.equal(now["lm_head"], other.tensors["lm_head"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": 16}, "old has width 8, and this configuration asks for model.n_embd = 16"),
        ({"rotary_embedding": "alibi"}, 'positions "rope", and this configuration asks for "alibi"'),
        (
            {"sequence_kernel": "mamba2", "mamba": {"headdim": 4}},
            'memory "linear_attention".*asks for "mamba2"',
        ),
        ({"normalization": {"affine": False}}, "norm.gain has no place in this model"),
        ({"normalization": {"kind": "dynamic_tanh"}}, "norm.* is missing there"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        transfer({}, **changes)
    assert "\n" not in str(caught.value)


def test_a_model_grows_and_maps_and_blends_at_once() -> None:
    """The table names every step of every tensor, and which settings differ."""
    old = lender(trained(1, ByteTokenizer()), ByteTokenizer())
    options = {"decoder_blend_alpha": 0.9}
    _, _, report = transfer(
        options, old=old, n_head=3, latent_total=48, n_layer=3, dropout=0.0, rope_theta=10.0
    )
    growth = "grown, 8 -> 16 neurons per head (8 of 8 split), 2 -> 3 heads"
    assert fates(report) == {
        "embedding.weight": "8 of 8 tokens mapped, the rest fresh",
        "encoder": growth,
        "encoder_v": growth,
        "decoder": f"{growth}, then blended 0.9 with 0.1 fresh",
        "lm_head": "8 of 8 tokens mapped, the rest fresh",
        "norm.gain": "kept",
        "norm.bias": "kept",
        "memory.frequencies": growth,
    }
    record = report.to_json()
    assert record["settings"][-1] == "model.rope_theta: 65536.0 -> 10.0 (the weights keep theirs)"
    assert record["init_transfer"] == options
    assert {entry["name"] for entry in record["tensors"]} == {name for name, _, _ in report.fates}
    assert record["growth"] == growth.removeprefix("grown, ")
