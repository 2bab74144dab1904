"""No locale and no platform setting has a say in what is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import hashlib, sys
from pathlib import Path
from types import SimpleNamespace as Table
from wyrmling.errors import DataError
from wyrmling.text.sources import open_source
from wyrmling.text.tokenizers import build_tokenizer, save_tokenizer, load_tokenizer

folder = Path(sys.argv[1])
out = []
for kind, invalid in [("byte", "error"), ("char", "error"), ("char", "replace"), ("bpe", "replace")]:
    keys = {"add_special_tokens": False, "include_unknown": True, "vocab_path": None, "vocab_size": 280}
    table = Table(type=kind, normalize=(), **keys)
    reading = {"encoding": "utf-8", "max_decompressed_mb": None, "suffixes": None, "invalid_utf8": invalid}
    config = Table(type="local_text", path=folder, documents="file", tokenizer=table, **reading)
    source = open_source(config, cache_dir=folder)
    try:
        tokenizer = build_tokenizer(table, source.pieces)
        save_tokenizer(folder.parent / "tokenizer.json", tokenizer)
        tokenizer = load_tokenizer(folder.parent / "tokenizer.json")
        tokens = [tokenizer.encode(p.data, origin=p.origin, offset=p.offset).tolist() for p in source.pieces()]
        out.append((kind, [f.name.split('/')[-1] for f in source.files], tokens, source.notes, tokenizer.fingerprint()))
    except DataError as error:
        out.append((kind, str(error).replace(str(folder), "")))
sys.stdout.buffer.write(ascii(out).encode())
"""


@pytest.mark.skipif(os.name == "nt", reason="locales are chosen by other means on Windows")
def test_the_same_bytes_give_the_same_tokens_in_every_locale(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "bad.txt").write_bytes(b"ok\xff\xfe\n\xc3(\nend\n")
    (texts / "Ünï cödé.txt").write_bytes("größer\r\n".encode())
    found = set()
    for settings in (
        {"LC_ALL": "C"},
        {"LC_ALL": "C.UTF-8"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ):
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG"))}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(texts)],
            env={**clean, **settings},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
        found.add(done.stdout)
    assert len(found) == 1
    text = found.pop().decode("ascii")
    assert (
        "'byte', ['bad.txt', '\\xdcn\\xef c\\xf6d\\xe9.txt'], [[111, 107, 255, 254, 10, 195, 40, 10" in text
    )
    assert "bad.txt: invalid UTF-8 at byte offset 2 (0xff)" in text
    assert "3 invalid byte sequences replaced" in text
