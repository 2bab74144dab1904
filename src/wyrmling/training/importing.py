"""Published BDH weights as a run of this package, ready to evaluate, generate, and start from."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint import Surroundings, save_checkpoint, write_pointer
from ..checkpoint.contents import load_model_tensors, model_tensors
from ..checkpoint.interchange import read_published_bdh
from ..config import Config, load_config
from ..model import Model
from ..runs import Choice, RunDirectory, build_run_record, create_run
from ..text.tokenizers import build_tokenizer
from .versions import versions


def import_published(
    path: Path, *, n_layer: int = 6, name: str | None = None, dropout: float = 0.1
) -> tuple[RunDirectory, int]:
    """Make a run whose only checkpoint, step 0, holds the weights of a published BDH.

    A vocabulary of 256 is taken for bytes, as the published code has it; any other size becomes token ids.

    Args:
        n_layer: how often the layer is applied; the weights are shared, so the file does not tell.
        dropout: written into the run's configuration, for further training.
    Returns: the run and its number of parameters.
    Raises:
        CheckpointError: no such file, not a published BDH, or more than plain tensors.
    """
    published = read_published_bdh(path, n_layer=n_layer)
    vocabulary = published.tensors["embedding.weight"].shape[0]
    table = load_config("published-bdh").to_dict()
    table["model"].update(published.settings, dropout=dropout)
    if vocabulary != 256:
        table["dataset"] = {"type": "pretokenized", "path": "tokens.npy"}
        table["dataset"]["tokenizer"] = {"type": "pretokenized", "vocab_size": vocabulary}
    table["run_layout"]["name"] = name
    config = Config.from_dict(table, origin=str(path))
    tokenizer = build_tokenizer(config.dataset.tokenizer, lambda: iter(()))
    model = Model(config.effective_model, vocabulary, seed=config.training.seed)
    load_model_tensors(model, published.tensors, cast=True)

    def fill(run: RunDirectory) -> None:
        record = build_run_record(
            config=config,
            name=run.name,
            model_facts={"parameters": model.parameter_count(), "vocab_size": vocabulary},
            data_facts={"fingerprint": "", "tokenizer_fingerprint": tokenizer.fingerprint()},
            choices=[Choice("weights", str(path), "imported from the published BDH")],
            versions=versions(),
        )
        run.write_records(config, tokenizer, record)
        progress = {"step": 0, "imported_from": str(path)}
        # The weights depend on this table alone; text may be given to the run later.
        surroundings = Surroundings({"model": config.to_dict()["model"]}, tokenizer.fingerprint(), "")
        save_checkpoint(run.checkpoints, 0, {"model": model_tensors(model)}, progress, surroundings)
        write_pointer(run.checkpoints, "latest", 0)

    return create_run(config, fill), model.parameter_count()
