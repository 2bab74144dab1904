"""A bundle is read whole before anything runs: every stage's configuration, and every reference, or one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wyrmling.config import Bundle, load_bundle, load_config
from wyrmling.errors import ConfigError

Write = Callable[[str, str], str]

BUNDLE = """
name = "plays"
config = "tiny"
set = ["training.seed=5", "training.batch_size=2"]

[[stages]]
name = "short"
set = ["training.block_size=16"]

[[stages]]
name = "long"
config = "more.toml"
set = ["training.batch_size=8"]
init_from = "short"
init_checkpoint = "best"
"""


def refused(path: str, *overrides: str, name: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_bundle(path, overrides, name)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.fixture
def bundle(write: Write) -> Bundle:
    write("place/more.toml", "[training]\nblock_size = 64\nseed = 6\n")
    return load_bundle(
        write("place/plays.toml", BUNDLE), ["training.max_iters=7", "long:training.max_iters=9"]
    )


def test_layers_lie_over_each_other_from_the_bundle_to_the_command(bundle: Bundle) -> None:
    """Files relative to the bundle, `set` of the bundle, of the stage, then `--set`, for all or for one."""
    short, long = (stage.config.training for stage in bundle.stages)
    assert (short.block_size, short.batch_size, short.seed, short.max_iters) == (16, 2, 5, 7)
    assert (long.block_size, long.batch_size, long.seed, long.max_iters) == (64, 8, 5, 9)


def test_every_stage_has_a_run_of_its_own_in_the_bundles_folder(bundle: Bundle) -> None:
    root = Path("runs") / "bundles" / "plays"
    assert bundle.folder == root
    assert [stage.run for stage in bundle.stages] == [
        root / "stages" / "short" / "plays-short",
        root / "stages" / "long" / "plays-long",
    ]


def test_a_stage_begins_where_it_says(bundle: Bundle) -> None:
    short, long = (stage.config.training for stage in bundle.stages)
    assert (short.launch_mode, short.init_checkpoint_path) == ("fresh", None)
    assert (long.launch_mode, long.init_checkpoint_path) == ("init_from_checkpoint", bundle.stages[0].run)
    assert (bundle.stages[1].init_from, bundle.stages[1].init_checkpoint) == ("short", "best")


def test_a_tokenizer_that_would_be_learned_is_the_lenders(write: Write) -> None:
    """Other text would give other tokens; what is named stays."""
    path = write("b.toml", TWO + 'init_from = "one"\n')
    for kind in ("char", "bpe"):
        one, two = load_bundle(path, [f"dataset.tokenizer.type={kind}"]).stages
        assert one.config.dataset.tokenizer.vocab_path is None
        assert two.config.dataset.tokenizer.vocab_path == one.run / "tokenizer.json"
    named = load_bundle(
        path, ["dataset.tokenizer.type=bpe", "dataset.tokenizer.vocab_path=mine.json"]
    ).stages[1]
    assert named.config.dataset.tokenizer.vocab_path == Path("mine.json")


def test_names_come_from_the_command_the_file_or_the_files_name(write: Write) -> None:
    path = write("unnamed.toml", '[[stages]]\nname = "only"\nconfig = "tiny"\n')
    assert load_bundle(path).name == "unnamed"
    assert load_bundle(path, ["run_layout.name=none"], name="second").stages[0].run.name == "second-only"
    own = load_bundle(path, ["run_layout.name=mine", "run_layout.category=a/b", "run_layout.variant=v"])
    assert own.folder == Path("runs/a/b/bundles/unnamed")
    assert own.stages[0].run == own.folder / "stages/only/variants/v/mine"


def test_a_stage_without_files_is_the_default_recipe(write: Write) -> None:
    (stage,) = load_bundle(write("b.toml", '[[stages]]\nname = "only"\n')).stages
    assert stage.config.model == load_config().model


HEAD = 'config = "tiny"\n[[stages]]\nname = "one"\n'
TWO = HEAD + '[[stages]]\nname = "two"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "b.toml:1: stages is missing"),
        ("stages = []", "b.toml:1: stages must not be empty"),
        ("stages = 5", "b.toml:1: stages must be a list, got 5"),
        ("[[stages]]\nset = []", "b.toml:1: stages.name is missing"),
        ('nam = "x"\n' + HEAD, "b.toml:1: nam is no key of a bundle (did you mean name?)"),
        (HEAD + "inits = 1", "b.toml:4: stages.inits is no key of a bundle"),
        (HEAD + 'depends_on = ["x"]', "b.toml:4: stages.depends_on is not needed"),
        (
            HEAD + 'init_checkpoint_from_stage = "x"',
            "b.toml:4: stages.init_checkpoint_from_stage has a new name",
        ),
        ("training = {max_iters = 5}\n" + HEAD, "b.toml:1: training belongs to a configuration"),
        ('name = "a/b"\n' + HEAD, "b.toml:1: name = 'a/b' cannot be a folder's"),
        ('[[stages]]\nname = ".."', "b.toml:2: stages.name = '..' cannot be a folder's"),
        ('[[stages]]\nname = "latest"', "b.toml:2: stages.name = 'latest' cannot be a folder's"),
        (HEAD + '[[stages]]\nname = "One"', "b.toml:5: stages.name = 'One' is given twice"),
        (
            HEAD + 'init_from = "one"',
            "b.toml:4: stages.init_from = 'one' is no earlier stage; there is none before",
        ),
        (
            TWO + 'init_from = "On"',
            "b.toml:6: stages.init_from = 'On' is no earlier stage; those before two are one",
        ),
        (TWO + 'init_checkpoint = "best"', "b.toml:6: stages.init_checkpoint requires stages.init_from"),
        (
            TWO + 'init_from = "one"\ninit_checkpoint = "newest"',
            'b.toml:7: stages.init_checkpoint must be "latest" or "best"',
        ),
        (
            HEAD + 'config = "gone.toml"',
            "b.toml: stage one: b.toml: config gone.toml: no such configuration file",
        ),
        (
            HEAD + 'set = ["training.block_size=0"]',
            "b.toml: stage one: --set training.block_size=0: training",
        ),
        (
            HEAD + 'set = ["run_layout.stage=x"]',
            "b.toml: stage one: run_layout.stage follows from the bundle",
        ),
        (
            HEAD + 'set = ["run_layout.bundle=x"]',
            "b.toml: stage one: run_layout.bundle follows from the bundle",
        ),
        (
            HEAD + 'set = ["training.launch_mode=resume_exact_run"]',
            'b.toml: stage one: training.launch_mode = "resume_exact_run" has no place in a bundle',
        ),
        (
            TWO + 'init_from = "one"\nset = ["training.init_checkpoint_path=x"]',
            "b.toml: stage two: training.init_checkpoint_path cannot be combined with init_from",
        ),
        (
            TWO + 'init_from = "one"\nset = ["training.init_checkpoint_step=5"]',
            "b.toml: stage two: training.init_checkpoint_step cannot be combined with init_from",
        ),
        (
            TWO + 'init_from = "one"\nset = ["model.n_embd=64"]',
            "b.toml: stage two: the weights of stage one do not fit: model.n_embd is 32 there and 64 here",
        ),
        (
            TWO + 'init_from = "one"\nset = ["model.sequence_kernel=mamba2"]',
            "b.toml: stage two: the weights of stage one do not fit: model.sequence_kernel",
        ),
        (
            TWO + 'init_from = "one"\nset = ["model.n_head=1", "model.latent_total=64"]',
            "b.toml: stage two: the weights of stage one do not fit: model.n_head is 2 there and 1 here, and a model",
        ),
        (
            TWO + 'init_from = "one"\nset = ["model.n_head=4"]',
            "b.toml: stage two: the weights of stage one do not fit: a head's neurons (model.latent_total / "
            "model.n_head) are 64 there and 32 here",
        ),
        (
            'config = "tiny"\nset = ["dataset.train_split_ratio=1.0"]\n[[stages]]\nname = "one"\n'
            '[[stages]]\nname = "two"\ninit_from = "one"\ninit_checkpoint = "best"',
            "b.toml: stage two: stage one has no validation and so no best checkpoint",
        ),
        (TWO + 'set = ["run_layout.category=x"]', "b.toml: the stages of a bundle lie in one folder"),
    ],
)
def test_what_cannot_be_is_one_line_before_anything_runs(write: Write, text: str, line: str) -> None:
    assert refused(write("b.toml", text)).startswith(line)


def test_a_stage_may_be_larger_than_the_one_it_begins_with_and_read_other_tokens(write: Write) -> None:
    settings = '["model.n_head=4", "model.latent_total=512", "dataset.tokenizer.type=char"]'
    _, two = load_bundle(write("b.toml", TWO + f'init_from = "one"\nset = {settings}')).stages
    assert two.config.model.neurons_per_head == 128
    assert two.config.dataset.tokenizer.vocab_path is None  # the lender's are bytes


def test_options_for_a_stage_that_is_not_there(write: Write) -> None:
    path = write("b.toml", TWO)
    assert refused(path, "three:training.seed=1").startswith(
        "--set three:training.seed=1: there is no stage 'three' in this bundle; its stages are one, two"
    )
    assert "cannot be a folder's" in refused(path, name="../x")


def test_a_value_with_a_colon_is_no_stage(write: Write) -> None:
    (stage,) = load_bundle(write("b.toml", HEAD), ['generation.prompt="one:two"']).stages
    assert stage.config.generation.prompt == "one:two"


def test_a_configuration_is_no_bundle_and_a_bundle_no_configuration(write: Write) -> None:
    assert "belongs to a configuration" in refused("tiny")
    with pytest.raises(ConfigError, match=r"b\.toml:2: stages belong to a bundle.*`wyrmling bundle`"):
        load_config(write("b.toml", HEAD))
