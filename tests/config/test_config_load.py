"""Files, `extends`, overlays, origins, and what is said about files that cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wyrmling.config import Config, load_config, with_overrides
from wyrmling.config.load import config_from_dict
from wyrmling.errors import ConfigError

Write = Callable[[str, str], str]
Refusal = Callable[..., str]

DATASET_TYPES = (
    '"local_text", "jsonl", "csv", "parquet", "shakespeare", "package_text", "hugging_face" or "pretokenized"'
)


def test_no_file_is_the_default_recipe_and_an_empty_file_is_all_defaults(write: Write) -> None:
    assert load_config() == load_config("shakespeare")
    assert load_config(write("empty.toml", "")) == Config()
    assert load_config(write("comment.toml", "# nothing\n")).to_dict() == Config().to_dict()


def test_later_files_lie_over_earlier_ones_and_origins_name_file_and_line(write: Write) -> None:
    base = write("base.toml", "[training]\nbatch_size = 3\nblock_size = 5\n\n[model]\nn_layer = 2\n")
    over = write("sub/over.toml", "# comment\n\ntraining.block_size = 7\n")
    config = load_config([base, over], ["model.n_layer=4"])
    assert (config.training.batch_size, config.training.block_size, config.model.n_layer) == (3, 7, 4)
    assert config.origin("training.batch_size") == "base.toml:2"
    assert config.origin("training.block_size") == "sub/over.toml:3"
    assert config.origin("model.n_layer") == "--set"
    assert config.origin("training.seed") == "default"
    assert config.origin("no.such.key") == "default"


def test_a_value_given_as_a_whole_answers_for_the_keys_inside(write: Write) -> None:
    text = '[model]\nn_head = 2\nsequence_kernel = "linear_attention"\nrotary_embedding = "alibi"\n'
    config = load_config(write("a.toml", text + "alibi_slopes = [\n  1.0,\n  0.5,\n]\n"))
    assert config.origin("model.sequence_kernel.memory_system") == "a.toml:3"
    assert config.origin("model.alibi_slopes") == "a.toml:5"
    assert config.origin("model.alibi_slopes.1") == "a.toml:7"


def test_extends_is_relative_to_its_file_and_later_bases_win(write: Write) -> None:
    write("a/one.toml", "[training]\nseed = 1\nbatch_size = 1\nblock_size = 1\n")
    write("a/two.toml", "[training]\nseed = 2\nbatch_size = 2\n")
    top = write("a/b/top.toml", 'extends = ["../one.toml", "../two.toml"]\n[training]\nseed = 3\n')
    config = load_config(top)
    assert (config.training.seed, config.training.batch_size, config.training.block_size) == (3, 2, 1)
    assert config.origin("training.block_size").endswith("one.toml:4")


def test_a_file_may_extend_a_recipe_by_name(write: Write) -> None:
    config = load_config(write("mine.toml", 'extends = "tiny"\n[training]\nseed = 5\n'))
    assert with_overrides(load_config("tiny"), ["training.seed=5"]) == config
    assert config.origin("model.n_layer").startswith("recipes/tiny.toml:")
    assert config.origin("dataset.split").startswith("recipes/shakespeare.toml:")


def test_a_diamond_is_fine_and_a_circle_is_reported_with_its_path(write: Write, refusal: Refusal) -> None:
    write("root.toml", "training.seed = 9\n")
    write("left.toml", 'extends = "root.toml"\n')
    write("right.toml", 'extends = "root.toml"\n')
    assert load_config(write("top.toml", 'extends = ["left.toml", "right.toml"]\n')).training.seed == 9
    write("x.toml", 'extends = "y.toml"\n')
    write("y.toml", 'extends = "z.toml"\n')
    write("z.toml", 'extends = "x.toml"\n')
    assert refusal("x.toml") == "z.toml: extends goes in a circle: x.toml -> y.toml -> z.toml -> x.toml"
    assert "self.toml -> self.toml" in refusal(write("self.toml", 'extends = "self.toml"\n'))


@pytest.mark.parametrize(
    ("value", "found"),
    [("3", "an integer"), ("{a = 1}", "a table"), ("[1]", "an array"), ("true", "a boolean")],
)
def test_extends_of_a_wrong_type_names_the_type_found(
    write: Write, refusal: Refusal, value: str, found: str
) -> None:
    message = refusal(write("a.toml", f"\nextends = {value}\n"))
    assert message.startswith("a.toml:2: extends must be")
    assert message.endswith(found)


def test_a_base_that_is_missing_is_reported_with_the_file_that_wants_it(
    write: Write, refusal: Refusal
) -> None:
    message = refusal(write("a.toml", 'extends = "gone.toml"\n'))
    assert message == "a.toml: extends gone.toml: no such configuration file"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gone.toml", ["gone.toml: no such configuration file"]),
        ("shakespear", ["no such recipe", "did you mean shakespeare?", "tiny", "published-bdh"]),
        ("zzz", ["zzz: no such recipe or configuration file (the recipes are shakespeare"]),
        ("training.batch_size=3", ["write --set training.batch_size=3"]),
        ("optim.lr", ["optim.lr: no such configuration file", "--set key=value"]),
        ("1e-5", ["1e-5: no such recipe"]),
        (".", ["is a folder"]),
    ],
)
def test_a_name_that_is_no_file_is_refused_with_a_hint(refusal: Refusal, name: str, parts: list[str]) -> None:
    message = refusal(name)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nbatch_size 3\n", "bad.toml:2:12: expected '=' after a key in a key/value pair"),
        ("[training\n", "bad.toml:1:10: "),
        ("a = [1,", "bad.toml:1:8: "),
        ('a = "x\n', "bad.toml:1:7: "),
        ("training: 3\n", "bad.toml:1:9: "),
        ("[training]\nseed = 1\nseed = 2\n", "bad.toml:3:9: duplicate: seed is given before"),
        ("[training]\nseed = 1\n[training]\n", "bad.toml:3:10: duplicate: [training] is given before"),
        ("training.seed = 1\n[training]\nseed = 2\n", "bad.toml:2:10: duplicate"),
    ],
)
def test_what_does_not_parse_is_refused_with_line_and_column(
    write: Write, refusal: Refusal, text: str, message: str
) -> None:
    assert refusal(write("bad.toml", text)).startswith(message)


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", '{"training": {}}'), ("a.yaml", "training:\n  seed: 1\n"), ("a.yml", "- 1")]
)
def test_other_formats_are_refused_and_toml_is_named(
    write: Write, refusal: Refusal, name: str, text: str
) -> None:
    message = refusal(write(name, text))
    assert message.startswith(f"{name}:1:")
    assert message.endswith("(configurations are TOML)")


def test_text_that_is_not_utf8_is_refused_with_its_place(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "a.toml").write_bytes(b"[training]\n# caf\xe9\n")
    assert refusal("a.toml") == "a.toml:2: not UTF-8 text (byte 0xe9 at offset 16)"


def test_byte_order_mark_and_windows_line_ends_are_understood(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf[training]\r\n\r\nseed = 4\r\nsede = 4\r\n")
    assert refusal("a.toml").startswith("a.toml:4: training.sede: unknown key (did you mean training.seed?)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[training]\nlerning_rate = 0.1\n",
            "training.lerning_rate: unknown key (did you mean optimizer.learning_rate?)",
        ),
        (
            "[training]\nlearning_rate = 0.1\n",
            "training.learning_rate: unknown key (did you mean optimizer.learning_rate?)",
        ),
        ("[training]\nnum-epochs = 3\n", "training.num-epochs: unknown key (did you mean training.epochs?)"),
        ("\n[optim]\nlr = 1.0\n", "optim: unknown key or table (did you mean optimizer?)"),
        ("\nbatch_size = 2\n", "batch_size: unknown key or table (did you mean training.batch_size?)"),
        (
            "\ntraining.Batch-Size = 2\n",
            "training.Batch-Size: unknown key (did you mean training.batch_size?)",
        ),
        ("[optimizer]\nlr = 1.0\n", "optimizer.lr: unknown key (did you mean optimizer.learning_rate?)"),
        (
            "[training.optimizer]\nlearning_rate = 0.1\n",
            "training.optimizer: unknown key (did you mean optimizer?)",
        ),
        (
            "[model.initialization]\nneuron_gain = 1\n",
            "model.initialization.neuron_gain: unknown key (did you mean model.initialization.neuron_gains?)",
        ),
        ("\nqqqq = 2\n", "qqqq: unknown key or table"),
    ],
)
def test_an_unknown_key_is_refused_with_file_line_and_the_nearest_key(
    write: Write, refusal: Refusal, text: str, message: str
) -> None:
    line = 1 if text.startswith("[training.optimizer") else 2
    assert refusal(write("base.toml", text)) == f"base.toml:{line}: {message}"


def test_a_key_of_another_type_says_where_it_belongs(write: Write, refusal: Refusal) -> None:
    message = refusal(write("a.toml", '[dataset]\ntype = "shakespeare"\npackage = "x"\n'))
    assert message == (
        'a.toml:3: dataset.package does not belong to dataset.type = "shakespeare" (it belongs to "package_text")'
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("training.batch_size = 0", "training.batch_size must be > 0, got 0"),
        ("training.batch_size = -1", "training.batch_size must be > 0, got -1"),
        ('training.batch_size = "two"', 'training.batch_size must be a whole number, got "two"'),
        ("training.batch_size = true", "training.batch_size must be a whole number, got true"),
        (
            "training.batch_size = 9223372036854775808",
            "training.batch_size must fit in 64 bits, got 9223372036854775808",
        ),
        ("training.block_size = 16.5", "training.block_size must be a whole number, got 16.5"),
        ("training.block_size = 16.0", "training.block_size must be a whole number, got 16.0"),
        ("training = 3", "training must be a table, got 3"),
        ("model.dropout = 1.5", "model.dropout must be < 1, got 1.5"),
        ("model.dropout = nan", "model.dropout must be a finite number, got nan"),
        ("optimizer.eps = inf", "optimizer.eps must be a finite number, got inf"),
        ("optimizer.eps = false", "optimizer.eps must be a number, got false"),
        ("dataset.train_split_ratio = 0", "dataset.train_split_ratio must be > 0, got 0"),
        ("dataset.train_split_ratio = 1.01", "dataset.train_split_ratio must be <= 1, got 1.01"),
        ('runtime.deterministic = "yes"', 'runtime.deterministic must be true or false, got "yes"'),
        (
            'runtime.device = "cdua"',
            'runtime.device must be "auto", "cpu", "cuda" or "mps", got "cdua" (did you mean "cuda"?)',
        ),
        (
            'dataset.type = "local_txt"',
            f'dataset.type must be {DATASET_TYPES}, got "local_txt" (did you mean "local_text"?)',
        ),
        ("dataset.type = 3", f"dataset.type must be {DATASET_TYPES}, got 3"),
        ('dataset.type = "jsonl"', 'dataset.path is missing (dataset.type = "jsonl" needs it)'),
        ("optimizer.lr_schedule = {min_lr = 0.1}", "optimizer.lr_schedule.type is missing"),
        ("optimizer.lr_schedule = 3", "optimizer.lr_schedule must be a table, got 3"),
        ("training.early_stopping = {}", "training.early_stopping.patience is missing"),
        ("optimizer.grad_clip_norm = -1", "optimizer.grad_clip_norm must be > 0, got -1"),
        (
            'optimizer.grad_clip_norm = "of"',
            'optimizer.grad_clip_norm must be a number or "off", got "of" (did you mean "off"?)',
        ),
        ("generation.max_tokens = 0", "generation.max_tokens must be > 0, got 0"),
        ("generation.prompt = 7", "generation.prompt must be text, got 7"),
        ("model.alibi_slopes = [1, 0]", "model.alibi_slopes.1 must be > 0, got 0"),
        ("model.alibi_slopes = 1", "model.alibi_slopes must be a list, got 1"),
        ('dataset = {type = "local_text", path = ["a", 1]}', "dataset.path.1 must be text, got 1"),
        ('dataset = {type = "local_text", path = []}', "dataset.path must not be empty"),
        ('dataset = {type = "local_text", path = 1}', "dataset.path must be text or a list, got 1"),
        ('dataset.cache_dir = ""', 'dataset.cache_dir must not be empty, got ""'),
        ('run_layout.name = "a/b"', 'run_layout.name has characters that are not allowed, got "a/b"'),
        ("model.sequence_kernel = 4", "model.sequence_kernel must be a table, got 4"),
        (
            'model.sequence_kernel = "linear_atention"',
            'model.sequence_kernel.memory_system must be "linear_attention", "mamba2", "mamba3" or "rwkv8", '
            'got "linear_atention" '
            '(did you mean "linear_attention"?)',
        ),
    ],
)
def test_a_wrong_value_is_refused_with_file_line_form_and_value(
    write: Write, refusal: Refusal, line: str, message: str
) -> None:
    assert refusal(write("a.toml", f"\n\n{line}\n")) == f"a.toml:3: {message}"


def test_the_first_of_several_mistakes_is_told_and_the_others_are_counted(
    write: Write, refusal: Refusal
) -> None:
    path = write("a.toml", "[training]\nbatch = 1\nseed = -1\nblock_size = 0\n")
    assert (
        refusal(path)
        == "a.toml:2: training.batch: unknown key (did you mean training.batch_size?) (and 2 more)"
    )


def test_a_missing_key_points_at_the_line_that_makes_it_needed(write: Write, refusal: Refusal) -> None:
    path = write("a.toml", '[dataset]\n\ntrain_split_ratio = 0.5\ntype = "csv"\n')
    assert refusal(path) == 'a.toml:4: dataset.path is missing (dataset.type = "csv" needs it)'


def test_the_word_none_unsets_what_a_base_has_set(write: Write) -> None:
    config = load_config(["shakespeare", write("a.toml", 'optimizer.lr_schedule = "none"\n')])
    assert config.optimizer.lr_schedule is None
    assert config.origin("optimizer.lr_schedule") == "a.toml:1"


def test_older_names_of_two_keys_are_understood(write: Write, refusal: Refusal) -> None:
    text = "[model]\nneuron_space_dim = 512\n[model.init]\nsimple_normal_std = 0.5\n"
    config = load_config(write("a.toml", text), ["model.init.neuron_gains.log_sigma=0.5"])
    assert config.model.latent_total == config.model.total_neurons == 512
    assert config.model.initialization.simple_normal_std == 0.5
    assert config.model.initialization.neuron_gains.log_sigma == 0.5
    assert config.origin("model.latent_total") == "a.toml:2"
    both = write("b.toml", "[model]\nneuron_space_dim = 512\nlatent_total = 512\n")
    assert "model.neuron_space_dim: unknown key" in refusal(both)


def test_a_partial_initialization_keeps_the_other_defaults(write: Write) -> None:
    config = load_config(write("a.toml", "[model.initialization]\nsimple_normal_std = 0.01\n"))
    default = Config().model.initialization
    assert config.model.initialization == default.model_copy(update={"simple_normal_std": 0.01})


def test_a_configuration_survives_json(write: Write) -> None:
    path = write(
        "a.toml",
        'dataset = {type = "local_text", path = ["a", "b"], cache_dir = "~/c"}\ntraining.epochs = 2\n',
    )
    config = load_config(["tiny", path])
    again = Config.from_dict(json.loads(json.dumps(config.to_dict())), "training_config.json")
    assert again == config
    assert again.origin("training.epochs") == "training_config.json"
    assert again.origin("training.max_iters") == "training_config.json"


def test_a_stored_configuration_that_is_wrong_names_its_file() -> None:
    with pytest.raises(ConfigError, match=r"^run/training_config.json: training.seed must be >= 0, got -1$"):
        Config.from_dict({"training": {"seed": -1}}, "run/training_config.json")
    with pytest.raises(ConfigError, match=r"^training.seed must be >= 0, got -1$"):
        Config.from_dict({"training": {"seed": -1}})


def test_options_over_a_stored_configuration_keep_values_and_origins() -> None:
    config = load_config("tiny")
    changed = with_overrides(config, ["training.epochs=3", "model.mlp_internal_dim_multiplier=8"])
    assert (changed.training.epochs, changed.training.max_iters, changed.training.order) == (
        3,
        None,
        "epochs",
    )
    assert (changed.model.latent_total, changed.model.total_neurons) == (None, 256)
    assert changed.origin("training.epochs") == "--set"
    assert changed.origin("model.n_embd") == config.origin("model.n_embd")
    assert changed.origin("training.seed") == "default"
    assert with_overrides(config, []) == config
    with pytest.raises(
        ConfigError, match=r"^--set training.batch_size=0: training.batch_size must be > 0, got 0 "
    ):
        with_overrides(config, ["training.batch_size=0"])


def test_access_tokens_are_not_written_down() -> None:
    source = {"type": "hugging_face", "repo_id": "a/b", "token": "secret"}
    config = Config.from_dict({"dataset": {**source, "validation": source}})
    assert config.dataset.token == "secret"  # type: ignore[union-attr]
    assert "secret" not in json.dumps(config.to_dict())
    assert "secret" not in repr(config)
    assert with_overrides(config, ["training.seed=1"]).dataset.token == "secret"  # type: ignore[union-attr]


def test_a_configuration_cannot_be_changed() -> None:
    config = load_config("tiny")
    with pytest.raises(ValueError, match="frozen"):
        config.training.seed = 3  # type: ignore[misc]


def test_reading_a_configuration_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from wyrmling.config import load_config; load_config('tiny'); import wyrmling.cli.config; "
        "sys.exit(' '.join(m for m in ('torch', 'numpy', 'tokenizers') if m in sys.modules) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "name", ["rot13", "base64", "hex", "zip", "unicode_escape", "idna", "utf-7", "nope", ""]
)
def test_an_encoding_that_no_text_file_is_written_in_is_refused(name: str) -> None:
    table = {"type": "local_text", "path": "x"}
    with pytest.raises(ConfigError, match=r"dataset\.encoding"):
        config_from_dict({"dataset": {**table, "encoding": name}})
    for good, kept in (
        ("UTF8", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("latin-1", "latin-1"),
        ("gb18030", "gb18030"),
    ):
        dataset = config_from_dict({"dataset": {**table, "encoding": good}}).dataset
        assert dataset.encoding == kept  # type: ignore[union-attr]
