"""One file of named tensors, in the safetensors format, hashed while it is written.

The library's own writer serialises all tensors before it writes the first byte, reports a full disk as text
without an error number, and would have to be followed by a second pass for the hash. The format is small:
eight bytes with the length of a JSON header, the header, the numbers. So we write it, one tensor at a time,
and leave the reading, which faces files we did not write, to the library.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .manifest import FileRecord, TensorRecord, one_line

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8
_PIECE = 4 << 20  # hashed and written while it is in the cache


def describe(tensors: Mapping[str, Tensor]) -> dict[str, TensorRecord]:
    """Name, dtype and shape of each tensor, as the manifest records them.

    Raises:
        ValueError: a tensor that the format cannot hold (sparse, complex, without storage).
    """
    records = {}
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES or tensor.layout != torch.strided or tensor.is_meta:
            raise ValueError(
                f"the tensor {name!r} ({tensor.dtype}, {tensor.layout}, {tensor.device}) cannot be saved"
            )
        records[name] = TensorRecord(dtype=_NAMES[tensor.dtype], shape=tuple(tensor.shape))
    return records


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Write tensors (any device, any strides, shared memory written once per name) and make the file durable.

    At most one tensor at a time is copied to the CPU. The file holds contiguous numbers, little endian.

    Raises:
        OSError: the file system refused.
        ValueError: a tensor that the format cannot hold.
    """
    records = describe(tensors)
    # Wide types first: then every tensor starts at a multiple of its own size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    digest = hashlib.sha256()
    size = 0
    with open(path, "wb") as file:
        for piece in _pieces(_header(order, tensors, records), order, tensors):
            digest.update(piece)
            file.write(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(bytes=size, sha256=digest.hexdigest())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU, in memory of their own.

    Raises:
        ValueError: this is not a safetensors file (a pickle, say), or it is cut short.
        OSError: the file cannot be opened.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            # A clone, because the library's tensors are windows into the mapped file, which retention may
            # delete.
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, RuntimeError) as error:  # torch maps the file and has errors of its own
        raise ValueError(f"not a whole safetensors file ({one_line(error)})") from error


def _header(order: list[str], tensors: Mapping[str, Tensor], records: Mapping[str, TensorRecord]) -> bytes:
    entries = {}
    offset = 0
    for name in order:
        end = offset + tensors[name].numel() * tensors[name].element_size()
        record = records[name]
        entries[name] = {"dtype": record.dtype, "shape": list(record.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _pieces(header: bytes, order: list[str], tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    yield header
    for name in order:
        dense = tensors[name].detach().cpu().contiguous()
        # Not reshape: it may keep an odd stride along an axis of length 1, which a view as bytes refuses.
        flat = dense.as_strided((dense.numel(),), (1,))
        content = flat.view(torch.uint8).numpy().data
        for start in range(0, len(content), _PIECE):
            yield content[start : start + _PIECE]
