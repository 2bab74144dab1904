"""Weights of the published BDH (Kosowski et al. 2025, `bdh.py`) as ours.

The only place that opens a `.pt` file, and only with `weights_only=True`: tensors and plain containers are
rebuilt, nothing is called. The published layer and ours are the same mathematics, so importing is renaming:

    embed.weight [V,D]      embedding.weight
    encoder      [H,D,N]    encoder
    encoder_v    [H,D,N]    encoder_v
    decoder      [H*N,D]    decoder            rows head by head
    lm_head      [D,V]      lm_head
    attn.freqs   [1,1,1,N]  memory.frequencies [N/2] float64, one per rotary pair, in cycles per token
    lm_gate      [D,1]      (published, and never used by it: dropped)
"""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from .manifest import one_line

THETA = 2**16

_RENAMED = {
    "embed.weight": "embedding.weight",
    "encoder": "encoder",
    "encoder_v": "encoder_v",
    "decoder": "decoder",
    "lm_head": "lm_head",
}
_FREQUENCIES = "attn.freqs"
_UNUSED = "lm_gate"
_WRAPPER_PREFIXES = ("_orig_mod.", "module.")
_ENVELOPES = ("model", "state_dict", "model_state_dict")
_SHOWN = 3


@dataclass(frozen=True)
class PublishedBDH:
    """Imported weights.

    Attributes:
        tensors: under our names, on the CPU, in the file's dtype (frequencies: float64).
        settings: the keys of a configuration's `model` table under which they mean what they meant.
    """

    tensors: dict[str, Tensor]
    settings: dict[str, Any]


def read_published_bdh(path: Path, *, n_layer: int = 6) -> PublishedBDH:
    """Read a state dict of the published `bdh.py`, saved with `torch.save` plain or by a training script.

    Prefixes of `torch.compile` and of replicas are removed, in any nesting, and so is a dict around the
    state dict (key "model", "state_dict" or "model_state_dict").

    Args:
        n_layer: number of layers; the weights do not tell, because all layers share them.

    Raises:
        CheckpointError: no such file, not readable, more than plain tensors (refused, nothing is run), or
            not a published BDH: one line.
    """
    published = _strip(path, _find_state_dict(path, _load(path)))
    published.pop(_UNUSED, None)
    frequencies = published.pop(_FREQUENCIES, None)
    missing = [name for name in _RENAMED if name not in published]
    unexpected = sorted(published.keys() - _RENAMED.keys())
    for title, names in (("lacks", missing), ("has, beyond the published names,", unexpected)):
        if names:
            raise CheckpointError(
                f"{path} is not a published BDH: it {title} {', '.join(names[:_SHOWN])}; give the file that "
                "bdh.py's model saved"
            )
    heads, width, neurons, vocabulary = _sizes(path, published)
    tensors = {ours: published[theirs].detach().clone() for theirs, ours in _RENAMED.items()}
    tensors["memory.frequencies"] = _per_pair(path, frequencies, neurons)
    return PublishedBDH(tensors, _settings(n_layer, heads, width, neurons, vocabulary))


def published_frequencies(neurons: int) -> Tensor:
    """Rotary frequencies in cycles per token, float32 [N], rounding for rounding as `bdh.py` computes them.

    f_j = 1 / theta^(2 floor(j/2) / N) / (2 pi), theta = 2^16: the two neurons of a pair share one.
    """
    even = (torch.arange(0, neurons, 1, dtype=torch.float32) / 2).floor() * 2
    return 1.0 / (THETA ** (even / neurons)) / (2 * math.pi)


def _load(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}; check the path")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is refused: it holds more than plain tensors (or is damaged), and opening it could run "
            "code; save the model's state_dict() alone"
        ) from error
    except Exception as error:  # the loader raises whatever the bytes provoke
        raise CheckpointError(
            f"{path} cannot be read as a PyTorch file: {type(error).__name__}: {one_line(error)[:200]}; "
            "copy or download it again"
        ) from error


def _find_state_dict(path: Path, content: Any) -> Mapping[str, Tensor]:
    """The innermost state dict, inside the envelopes that training scripts put around it."""
    while isinstance(content, Mapping):
        inner = [content[key] for key in _ENVELOPES if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = inner[0]
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path} holds no state dict; save the model's state_dict()")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(
                f"{path} is not a state dict: the entry {str(name)[:40]!r} is a {type(value).__name__}; save "
                "the model's state_dict()"
            )
    return content


def _strip(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove wrappers' prefixes. No module of the published model is called like a wrapper's child."""
    stripped: dict[str, Tensor] = {}
    for full_name, tensor in tensors.items():
        name = full_name
        while name.startswith(_WRAPPER_PREFIXES):
            name = name.split(".", 1)[1]
        if name in stripped:
            raise CheckpointError(f"{path} holds {name} twice, once as {full_name}; save one model per file")
        stripped[name] = tensor
    return stripped


def _sizes(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, int, int, int]:
    """(H, D, N, V), all shapes checked against each other."""
    encoder, embedding = tensors["encoder"], tensors["embed.weight"]
    if encoder.dim() != 3 or embedding.dim() != 2:
        raise CheckpointError(
            f"{path} is not a published BDH: encoder has shape {list(encoder.shape)} and embed.weight "
            f"{list(embedding.shape)}, where [H,D,N] and [V,D] are expected"
        )
    heads, width, neurons = encoder.shape
    vocabulary = embedding.shape[0]
    expected = {
        "embed.weight": (vocabulary, width),
        "encoder": (heads, width, neurons),
        "encoder_v": (heads, width, neurons),
        "decoder": (heads * neurons, width),
        "lm_head": (width, vocabulary),
    }
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise CheckpointError(
                f"{path} is not a published BDH: {name} is {tensor.dtype} {list(tensor.shape)} where the "
                f"encoder and the embedding ask for {list(shape)}"
            )
    if neurons % 2:
        raise CheckpointError(
            f"{path}: {neurons} neurons per head do not form rotary pairs; N has to be even"
        )
    return heads, width, neurons, vocabulary


def _per_pair(path: Path, frequencies: Tensor | None, neurons: int) -> Tensor:
    """One frequency per rotary pair, float64 [N/2]."""
    # A model cast to fewer bits has its frequencies rounded too. They are constants: compute them again.
    if frequencies is None or frequencies.dtype not in (torch.float32, torch.float64):
        frequencies = published_frequencies(neurons)
    flat = frequencies.reshape(-1)
    if len(flat) != neurons or not torch.equal(flat[0::2], flat[1::2]):
        raise CheckpointError(
            f"{path}: {_FREQUENCIES} has shape {list(frequencies.shape)} or differs inside a pair; it should "
            f"hold {neurons} numbers, equal two by two"
        )
    return flat[0::2].to(torch.float64, copy=True)


def _settings(n_layer: int, heads: int, width: int, neurons: int, vocabulary: int) -> dict[str, Any]:
    multiplier, rest = divmod(heads * neurons, width)
    return {
        "n_layer": n_layer,
        "n_embd": width,
        "n_head": heads,
        "mlp_internal_dim_multiplier": None if rest else multiplier,
        "latent_total": heads * neurons if rest else None,
        "vocab_size": vocabulary,
        "dropout": 0.1,
        "sequence_kernel": "linear_attention",
        "rotary_embedding": "rope",
        "rope_theta": float(THETA),
        "relu_threshold": 0.0,
        "normalization": {"kind": "layer_norm", "affine": False, "eps": 1e-5},
        "tie_embeddings": False,
    }
