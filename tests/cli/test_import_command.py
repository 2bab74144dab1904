"""`wyrmling import-bdh`: published weights become a run whose logits are the published model's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import wyrmling
from wyrmling.__main__ import main
from wyrmling.config import with_overrides
from wyrmling.errors import CheckpointError

_SPEC = importlib.util.spec_from_file_location(
    "plain_bdh_for_import", Path(__file__).parents[2] / "benchmarks" / "plain_bdh.py"
)
plain_bdh = importlib.util.module_from_spec(_SPEC)
sys.modules["plain_bdh_for_import"] = plain_bdh
_SPEC.loader.exec_module(plain_bdh)


def published(vocabulary: int = 256) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model written from the published equations, and its state dict under the published names."""
    torch.manual_seed(3)
    model = plain_bdh.PlainBDH(
        n_layer=3, n_embd=32, n_head=4, multiplier=16, vocab_size=vocabulary, dropout=0.0
    )
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "frequencies"}
    return model, {**state, "attn.freqs": model.frequencies.view(1, 1, 1, -1)}


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module._orig_mod."])
def test_logits_of_the_imported_run(tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """To 1e-5 in float32 up to 512 tokens; compile and replica prefixes are stripped."""
    model, state = published()
    file = tmp_path / "bdh.pt"
    torch.save({prefix + name: tensor for name, tensor in state.items()}, file)
    assert main(["import-bdh", str(file), "--layers", "3", "--name", "published"]) == 0
    assert "published" in capsys.readouterr().out
    loaded = wyrmling.load_run("published")
    tokens = torch.randint(0, 256, (1, 512))
    with torch.no_grad():
        hidden, _ = loaded.model(tokens)
        assert float((loaded.model.logits(hidden) - model(tokens)[0]).abs().max()) < 1e-5
    assert len(wyrmling.generate(loaded, "To be", max_tokens=5, temperature=0)) > 0


def test_another_vocabulary_becomes_token_ids(tmp_path: Path) -> None:
    _, state = published(vocabulary=65)
    torch.save(state, tmp_path / "bdh.pt")
    assert main(["import-bdh", str(tmp_path / "bdh.pt"), "--layers", "3", "--name", "ids"]) == 0
    loaded = wyrmling.load_run("ids")
    assert loaded.tokenizer.kind == "pretokenized"
    assert loaded.tokenizer.vocab_size == 65


def test_weights_without_moments_cannot_be_resumed_but_can_start_a_run(tmp_path: Path) -> None:
    _, state = published()
    torch.save(state, tmp_path / "bdh.pt")
    assert main(["import-bdh", str(tmp_path / "bdh.pt"), "--layers", "3", "--name", "borrowed"]) == 0
    loaded = wyrmling.load_run("borrowed")
    text = tmp_path / "t.txt"
    text.write_text("to be or not to be " * 500, encoding="utf-8")
    place = loaded.run.path.as_posix()
    data = ["dataset.type=local_text", f'dataset.path="{text.as_posix()}"']
    resumed = ["training.launch_mode=resume_exact_run", f'training.resume_run_dir="{place}"']
    loaded.run.write_training_config(with_overrides(loaded.config, data))
    with pytest.raises(CheckpointError, match="imported, not trained"):
        wyrmling.train(with_overrides(loaded.config, [*data, *resumed]))
    started = ["training.launch_mode=init_from_checkpoint", f'training.init_checkpoint_path="{place}"']
    short = [
        "run_layout.name=none",
        "training.max_iters=1",
        "training.block_size=16",
        "training.batch_size=2",
    ]
    result = wyrmling.train(with_overrides(loaded.config, [*data, *started, *short]))
    assert result.step == 1


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR."])
def test_what_is_not_a_state_dict_is_refused_in_one_line(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pt").write_bytes(content)
    assert main(["import-bdh", str(tmp_path / "bad.pt")]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    assert not (tmp_path / "pwned").exists()
    assert not (tmp_path / "runs").exists()
