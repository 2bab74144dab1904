"""Weights that a new run begins with: whose they are, whether they fit, what became of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..checkpoint.transfer import Lender, Transfer, plan_transfer
from ..config import Config
from ..config.schema.init_transfer import InitTransfer
from ..runs import find_run
from ..runs.records import read_json
from ..text.tokenizers import Tokenizer
from .evaluation import Evaluation
from .launch import Launch, refuse_other_surroundings
from .loading import own_tokenizer

TRANSFER = "transfer.json"
PRE_STEP = "pre_step_validation.json"


def plan_borrowing(launch: Launch, config: Config, tokenizer: Tokenizer) -> Transfer | None:
    """The warm start that a launch asks for; None without one.

    Raises:
        CheckpointError: the weights cannot serve this configuration and tokenizer.
    """
    if launch.initial is None:
        return None
    return plan_transfer(
        _lender(launch.initial),
        None if launch.interface is None else _lender(launch.interface),
        config.effective_model,
        tokenizer,
        config.training.init_transfer,
        seed=config.training.seed,
    )


def pre_step_record(run: Path, options: InitTransfer, measured: Evaluation) -> dict[str, Any]:
    """What the borrowed weights of a run are worth before the first step, as `pre_step_validation.json` holds it.

    Raises:
        CheckpointError: the record of the transfer cannot be read.
    """
    transfer = read_json(run / TRANSFER)
    return {
        "split": "val",
        "mean_loss": measured.loss,
        "tokens": measured.targets,
        **{
            name: value
            for name, value in transfer.items()
            if name.endswith(("_checkpoint_path", "_checkpoint_step"))
        },
        "init_transfer": options.model_dump(mode="json"),
    }


def _lender(checkpoint: Checkpoint) -> Lender:
    run = find_run(checkpoint.path)
    refuse_other_surroundings(run, checkpoint)
    return Lender(
        name=run.name,
        config=run.training_config().effective_model,
        tokenizer=own_tokenizer(run),
        tensors=checkpoint.parts["model"],
        path=checkpoint.path,
        step=checkpoint.step,
    )
