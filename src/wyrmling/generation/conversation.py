"""A conversation in a file: what the model has read, so that it can go on later as if nothing had
happened."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from ..errors import CheckpointError
from ..files import write_atomically
from ..model.state import State

FORMAT = "wyrmling-conversation-1"
_STATE = "state."


@dataclass(frozen=True)
class Conversation:
    """One row's state and all of its tokens; the state has read all but the last.

    `unshown` is text of the last token that a limit on characters kept back.
    """

    state: State
    tokens: tuple[int, ...]
    unshown: str = ""


def save_conversation(
    path: Path, state: State, tokens: Sequence[int], fingerprints: Mapping[str, str], *, unshown: str = ""
) -> None:
    """Write a conversation to a safetensors file that appears whole or not at all.

    Args:
        state: of one row; it has read `tokens[:-1]`.
        fingerprints: what the file belongs to, for instance `model` and `tokenizer`; checked when it is
            loaded.
        unshown: see `Conversation`.

    Raises:
        StorageError: the file system refused.
        ValueError: more than one row, or no tokens.
    """
    if state.rows != 1 or not tokens:
        raise ValueError(
            f"a conversation is one row with at least one token, got {state.rows} rows, {len(tokens)} tokens"
        )
    tensors = {_STATE + name: tensor.cpu().contiguous() for name, tensor in state.to_tensors().items()}
    tensors["tokens"] = torch.tensor(list(tokens), dtype=torch.int64)
    if unshown:
        tensors["unshown"] = torch.tensor(list(unshown.encode("utf-8")), dtype=torch.uint8)
    metadata = {
        "format": FORMAT,
        "fingerprints": json.dumps(dict(fingerprints)),
        "sha256": _digest(tensors),
    }
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def load_conversation(path: Path, fingerprints: Mapping[str, str]) -> Conversation:
    """Read what `save_conversation` wrote; the state is on the CPU.

    Raises:
        CheckpointError: there is no such file, it is damaged or something else, or it belongs to another
            model or tokenizer than `fingerprints` says.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no conversation {path}: give a file that --state-out has written")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (
        safetensors.SafetensorError,
        OSError,
        RuntimeError,
    ) as error:  # torch maps it, with errors of its own
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is damaged or no conversation ({reason}): start a new one") from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a conversation of this version (expected {FORMAT})")
    try:
        _check_fingerprints(path, dict(json.loads(metadata.get("fingerprints", "{}"))), fingerprints)
        if metadata.get("sha256") != _digest(tensors):
            raise ValueError("its SHA-256 is not the one written")
        tokens = tensors.pop("tokens")
        unshown = bytes(tensors.pop("unshown", torch.empty(0)).tolist()).decode("utf-8")
        state = State.from_tensors({name.removeprefix(_STATE): tensor for name, tensor in tensors.items()})
        if state.rows != 1 or tokens.dim() != 1 or tokens.dtype != torch.int64 or not len(tokens):
            raise ValueError(f"{state.rows} rows, tokens {tokens.dtype} {list(tokens.shape)}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): start a new one") from error
    return Conversation(state, tuple(tokens.tolist()), unshown)


def model_fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 over the names, types, shapes and values of all weights, hexadecimal."""
    return _digest(model.state_dict())


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_fingerprints(path: Path, saved: Mapping[str, str], expected: Mapping[str, str]) -> None:
    for name, fingerprint in expected.items():
        if saved.get(name) != fingerprint:
            raise CheckpointError(
                f"{path} belongs to another {name} (saved {saved.get(name, 'none')[:12]}, "
                f"here {fingerprint[:12]}): continue it with the run and the checkpoint that wrote it"
            )
