"""Models and optimizers go into a file and come back exactly, whatever they were wrapped in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wyrmling.checkpoint import read_checkpoint, save_checkpoint
from wyrmling.checkpoint.contents import (
    load_model_tensors,
    load_optimizer_tensors,
    model_tensors,
    optimizer_tensors,
)
from wyrmling.errors import CheckpointError


class Tiny(nn.Module):
    """Has a submodule whose real name is `module`, one called `_orig_mod`, a buffer, and perhaps a tie."""

    def __init__(self, seed: int = 0, tied: bool = False, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(5, width)
        self.module = nn.Linear(width, width)
        self._orig_mod = nn.Sequential(nn.Linear(width, width, bias=False))
        self.gain = nn.Parameter(torch.randn(width))
        self.head = nn.Linear(width, 5, bias=False)
        self.register_buffer("frequencies", torch.randn(2, dtype=torch.float64))
        self.register_buffer("scratch", torch.randn(2), persistent=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self._orig_mod(torch.tanh(self.module(self.embedding(tokens)))) * self.gain)


NAMES = [
    "embedding.weight",
    "module.weight",
    "module.bias",
    "_orig_mod.0.weight",
    "gain",
    "head.weight",
    "frequencies",
]
TOKENS = torch.tensor([[0, 1, 2, 4], [3, 3, 0, 1]])


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One process is group enough for the replica wrapper."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=store.as_uri(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def compiled_inside(model: nn.Module) -> nn.Module:
    model.module = torch.compile(model.module)  # type: ignore[assignment]
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "compiled": lambda model: torch.compile(model),  # type: ignore[return-value]
    "replica": DistributedDataParallel,
    "compiled replica": lambda model: torch.compile(DistributedDataParallel(model)),  # type: ignore[return-value]
    "replica of compiled": lambda model: DistributedDataParallel(torch.compile(model)),  # type: ignore[arg-type]
    "averaged": torch.optim.swa_utils.AveragedModel,
    "compiled inside": compiled_inside,
}


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(TOKENS).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("saved", [name for name in WRAPPERS if name != "averaged"])
@pytest.mark.parametrize("loaded", [name for name in WRAPPERS if name != "averaged"])
def test_every_wrapping_loads_into_every_other(saved: str, loaded: str) -> None:
    source, target = Tiny(seed=1), Tiny(seed=2)
    wanted = values(source)
    tensors = model_tensors(WRAPPERS[saved](source))
    assert sorted(tensors) == sorted(NAMES)
    load_model_tensors(WRAPPERS[loaded](target), tensors)
    assert all(torch.equal(a, b) for a, b in zip(values(target).values(), wanted.values(), strict=True))


def test_a_wrapper_with_state_of_its_own_comes_back(tmp_path: Path) -> None:
    source = WRAPPERS["averaged"](Tiny(seed=1))
    tensors = model_tensors(source)
    assert sorted(tensors) == sorted([*NAMES, "n_averaged"])


@pytest.mark.parametrize("wrapped", ["plain", "replica", "compiled"])
def test_the_optimizer_has_one_set_of_names_too(wrapped: str) -> None:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 1)
    names = {key.rsplit(".", 1)[0] for key in optimizer_tensors(optimizer, WRAPPERS[wrapped](model))}
    assert names == set(NAMES) - {"frequencies"}


def test_tied_tensors_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    source, target = Tiny(seed=1, tied=True), Tiny(seed=2, tied=True)
    tied = model_tensors(source)
    assert sorted(tied) == sorted(set(NAMES) - {"head.weight"})
    path = save_checkpoint(tmp_path, 1, {"model": tied}, {})
    load_model_tensors(target, read_checkpoint(path).parts["model"])
    assert target.head.weight is target.embedding.weight
    assert target.head.weight.data_ptr() == target.embedding.weight.data_ptr()
    assert sum(p.numel() for p in target.parameters()) == sum(p.numel() for p in source.parameters())
    for model in (source, target):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    assert torch.equal(source.embedding.weight, target.embedding.weight)


def test_memory_shared_without_a_shared_parameter_is_a_tie_too() -> None:
    model = Tiny(seed=1)
    model.head.weight.data = model.embedding.weight.data
    assert "head.weight" not in model_tensors(model)


def test_untied_into_tied_and_back_are_refused() -> None:
    tied, untied = model_tensors(Tiny(tied=True)), model_tensors(Tiny())
    with pytest.raises(CheckpointError, match=r"not in this model head\.weight"):
        load_model_tensors(Tiny(tied=True), untied)
    with pytest.raises(CheckpointError, match=r"missing head\.weight"):
        load_model_tensors(Tiny(), tied)


def test_a_tie_is_recognised_under_its_other_name() -> None:
    tensors = model_tensors(Tiny(seed=1, tied=True))
    tensors["head.weight"] = tensors.pop("embedding.weight")
    model = Tiny(seed=2, tied=True)
    load_model_tensors(model, tensors)
    assert torch.equal(model.embedding.weight, tensors["head.weight"])


def test_a_misfit_is_one_line_with_few_names_and_changes_nothing() -> None:
    model = Tiny(seed=1)
    before = values(model)
    with pytest.raises(CheckpointError) as caught:
        load_model_tensors(model, {"strange": torch.zeros(1), **model_tensors(Tiny(width=4))})
    line = str(caught.value)
    assert "\n" not in line
    assert "not in this model strange" in line
    assert "embedding.weight is [5, 4] there and [5, 3] here" in line
    assert "and 3 more" in line
    with pytest.raises(CheckpointError, match=r"missing .*, .*, .* and 4 more"):
        load_model_tensors(model, {})
    assert all(torch.equal(before[name], tensor) for name, tensor in values(model).items())


def test_only_conversions_that_lose_digits_have_to_be_asked_for() -> None:
    narrow = Tiny(seed=1)
    wide = Tiny(seed=2).double()
    load_model_tensors(wide, model_tensors(narrow))
    assert torch.equal(wide.gain.float(), narrow.gain)
    with pytest.raises(CheckpointError, match=r"\w is float64 there and float32 here"):
        load_model_tensors(narrow, model_tensors(wide))
    load_model_tensors(narrow, model_tensors(wide), cast=True)


def test_state_that_is_no_tensor_is_refused_when_saving() -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"anything": 1}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(TypeError, match="_extra_state"):
        model_tensors(Odd(2, 2))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


def groups_of(model: nn.Module, order: int) -> list[dict[str, Any]]:
    """The parameters in two groups, in one of several orders."""
    parameters = list(model.parameters())
    if order % 2:
        parameters.reverse()
    cut = 1 + order % 3
    groups = [
        {"params": parameters[:cut], "weight_decay": 0.0},
        {"params": parameters[cut:], "weight_decay": 0.0},
    ]
    return groups[::-1] if order >= 3 else groups


@given(
    kind=st.sampled_from(sorted(OPTIMIZERS)),
    before=st.integers(0, 3),
    order=st.integers(0, 5),
    tied=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_resumed_optimizer_goes_on_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, kind: str, before: int, order: int, tied: bool
) -> None:
    """Through a file, into a fresh optimizer whose groups are in another order: the same weights ever after."""
    model = Tiny(seed=1, tied=tied)
    optimizer = OPTIMIZERS[kind](groups_of(model, 0))
    train(model, optimizer, before)
    parts = {"model": model_tensors(model), "optimizer": optimizer_tensors(optimizer, model)}
    path = save_checkpoint(tmp_path_factory.mktemp("root"), before, parts, {})
    train(model, optimizer, 3)

    resumed = Tiny(seed=2, tied=tied)
    fresh = OPTIMIZERS[kind](groups_of(resumed, order))
    checkpoint = read_checkpoint(path)
    load_model_tensors(resumed, checkpoint.parts["model"])
    load_optimizer_tensors(fresh, resumed, checkpoint.parts["optimizer"])
    saved_again = optimizer_tensors(fresh, resumed)
    assert saved_again.keys() == parts["optimizer"].keys()
    assert all(torch.equal(checkpoint.parts["optimizer"][name], t) for name, t in saved_again.items())
    train(resumed, fresh, 3)
    assert all(
        torch.equal(a, b) for a, b in zip(values(model).values(), values(resumed).values(), strict=True)
    )


def trained() -> tuple[Tiny, torch.optim.Optimizer, dict[str, Tensor]]:
    model = Tiny(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 2)
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, model).items()}
    return model, optimizer, tensors


def test_loading_does_not_share_memory_with_what_was_loaded() -> None:
    model, optimizer, tensors = trained()
    before = copy.deepcopy(tensors)
    load_optimizer_tensors(optimizer, model, tensors)
    train(model, optimizer, 1)
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)


@pytest.mark.parametrize(
    ("lose", "text"),
    [
        (lambda name: True, r"missing gain, embedding\.weight, module\.weight and 3 more"),
        (lambda name: name == "gain.exp_avg_sq", r"missing gain\.exp_avg_sq"),
        (lambda name: name == "gain.step", r"missing gain\.step"),
        (lambda name: name.startswith("module.weight."), r"missing module\.weight"),
        (lambda name: name == "gain.slots", r"missing gain; of no parameter here gain\.exp_avg"),
    ],
)
def test_lost_state_is_never_silently_fresh(lose: Callable[[str], bool], text: str) -> None:
    model, optimizer, tensors = trained()
    left = {name: tensor for name, tensor in tensors.items() if not lose(name)}
    before = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(CheckpointError, match=text) as caught:
        load_optimizer_tensors(optimizer, model, left)
    assert "\n" not in str(caught.value)
    assert "init_from_checkpoint" in str(caught.value)
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(after[i][slot], before[i][slot]) for i in before for slot in before[i])


def test_a_missing_optimizer_part_is_an_error(tmp_path: Path) -> None:
    model, optimizer, _ = trained()
    with pytest.raises(CheckpointError, match="holds no optimizer state"):
        load_optimizer_tensors(optimizer, model, None)
    path = save_checkpoint(tmp_path, 1, {"model": model_tensors(model)}, {})
    with pytest.raises(CheckpointError, match="no part 'optimizer'"):
        read_checkpoint(path, ["model", "optimizer"])


def test_state_of_another_optimizer_or_model_is_refused() -> None:
    model, _, tensors = trained()
    with pytest.raises(CheckpointError, match="was trained with AdamW and this is SGD"):
        load_optimizer_tensors(torch.optim.SGD(model.parameters(), lr=0.1), model, tensors)
    wide = Tiny(width=4)
    with pytest.raises(CheckpointError, match=r"is \[5, 3\] there and \[5, 4\] here"):
        load_optimizer_tensors(torch.optim.AdamW(wide.parameters()), wide, tensors)
    part = torch.optim.AdamW([model.gain])
    with pytest.raises(CheckpointError, match="of no parameter here"):
        load_optimizer_tensors(part, model, tensors)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("gain.exp_avg", torch.zeros(2), r"gain\.exp_avg is \[2\] there and \[3\] here"),
        ("gain.exp_avg_sq", torch.zeros(3, 1), r"gain\.exp_avg_sq is \[3, 1\] there and \[3\] here"),
        (
            "gain.exp_avg",
            torch.zeros(3, dtype=torch.float64),
            r"gain\.exp_avg is float64 there and float32 here",
        ),
        ("gain.exp_avg", torch.zeros(3, dtype=torch.int32), r"gain\.exp_avg is int32 there"),
        ("gain.exp_avg", torch.tensor([0.0, float("nan"), 0.0]), r"gain\.exp_avg holds .* not finite"),
        ("gain.step", torch.zeros(2), r"gain\.step is \[2\] there and one number here"),
        ("gain.step", torch.tensor(float("inf")), r"gain\.step holds .* not finite"),
    ],
)
def test_a_moment_that_the_kernel_must_not_be_given_is_named(key: str, value: Tensor, told: str) -> None:
    model, optimizer, tensors = trained()
    before = optimizer.state[model.gain]["exp_avg"]
    assert tensors[key].dim() == (0 if key.endswith(".step") else 1)
    with pytest.raises(CheckpointError, match=told) as caught:
        load_optimizer_tensors(optimizer, model, {**tensors, key: value})
    assert "\n" not in str(caught.value)
    assert optimizer.state[model.gain]["exp_avg"] is before


def test_weights_that_are_not_finite_are_refused_and_named() -> None:
    model, _, _ = trained()
    tensors = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    tensors["gain"][1] = float("inf")
    with pytest.raises(CheckpointError, match="gain holds numbers that are not finite"):
        load_model_tensors(model, tensors)
    assert bool(torch.isfinite(model.gain).all())


def test_a_parameter_without_a_gradient_has_no_state_and_that_is_remembered() -> None:
    model = Tiny(seed=1)
    model.gain.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 2)
    tensors = optimizer_tensors(optimizer, model)
    fresh = torch.optim.AdamW(model.parameters(), lr=0.01)
    load_optimizer_tensors(fresh, model, tensors)
    assert model.gain not in fresh.state
    assert len(fresh.state) == len(list(model.parameters())) - 1


def test_a_foreign_parameter_is_refused() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    with pytest.raises(ValueError, match="the model does not have"):
        optimizer_tensors(optimizer, Tiny())


def test_numbers_in_the_state_come_back_as_numbers() -> None:
    model = Tiny(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.gain].update(count=3, rate=0.1, warm=True, nothing=None)
    fresh = torch.optim.SGD(model.parameters(), lr=0.1)
    load_optimizer_tensors(fresh, model, optimizer_tensors(optimizer, model))
    assert fresh.state[model.gain] == {"count": 3, "rate": 0.1, "warm": True}
    assert [type(value) for value in fresh.state[model.gain].values()] == [int, float, bool]
    optimizer.state[model.gain]["history"] = [1, 2]
    with pytest.raises(ValueError, match="'history' of gain"):
        optimizer_tensors(optimizer, model)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"optimizer": "AdamW", "shape": [3], "slots": {"x": "eval"}}']
)
def test_an_unreadable_record_of_slots_is_refused(content: bytes) -> None:
    model, optimizer, tensors = trained()
    tensors["gain.slots"] = torch.tensor(list(content), dtype=torch.uint8)
    with pytest.raises(CheckpointError, match="gain has no readable record"):
        load_optimizer_tensors(optimizer, model, tensors)
