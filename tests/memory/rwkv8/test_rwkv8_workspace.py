"""What outlives a call: buffers and tables that other calls, other graphs and other threads use again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from rwkv8_cases import Case, Form, loop, make_case, outcome
from torch import Tensor

from memory_cases import assert_close, draw
from wyrmling.memory.rwkv8 import chunked
from wyrmling.memory.rwkv8.halving import Powers
from wyrmling.memory.rwkv8.workspace import Workspace


def over(workspace: Workspace, chunk: int = 8) -> Form:
    """The recurrence in a workspace that others use too."""

    def form(*inputs: Tensor | None):  # type: ignore[no-untyped-def]
        return chunked.decayed_recurrence(*inputs, chunk=chunk, workspace=workspace)  # type: ignore[arg-type]

    return form


def graph(form: Form, case: Case) -> tuple[Tensor, list[Tensor]]:
    """A number that everything found leads to, and what it depends on."""
    inputs = [x.clone().requires_grad_() for x in case if x is not None]
    found = form(*inputs)
    return sum((x * draw(*x.shape, seed=90).to(x)).sum() for x in found), inputs  # type: ignore[union-attr, misc]


def test_a_kept_workspace_is_as_good_as_a_new_one() -> None:
    """Calls of other sizes and types in between leave nothing behind."""
    form = over(Workspace())
    for length, neurons, seed in ((20, 5, 0), (3, 5, 1), (40, 9, 2), (20, 5, 3), (8, 2, 4)):
        case = make_case(length=length, neurons=neurons, seed=seed)
        assert_close(outcome(form, case), outcome(loop, case))
        outcome(form, case.to(torch.float32), low=torch.bfloat16)
    nan = make_case(length=20)
    form(*nan._replace(neurons=torch.full_like(nan.neurons, torch.nan), values=draw(2, 20, 3) * torch.nan))
    case = make_case(length=20)
    assert_close(outcome(form, case), outcome(loop, case))
    with torch.inference_mode():
        form(*make_case(length=30))
    assert_close(outcome(form, case), outcome(loop, case))


@pytest.mark.parametrize("first", [0, 1])
def test_two_graphs_over_one_workspace(first: int) -> None:
    """Both forward passes, then both backward passes in either order: sizes, decays and widths differ."""
    form = over(Workspace())
    cases = make_case(length=21), make_case(rows=3, length=40, neurons=9, seed=1)
    expected = [torch.autograd.grad(*graph(loop, case)) for case in cases]
    graphs = [graph(form, case) for case in cases]
    for i in (first, 1 - first):
        for one, other in zip(torch.autograd.grad(*graphs[i]), expected[i], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_backward_pass_inside_autocast_is_as_exact() -> None:
    """Products stay in float32 where the forward pass had them so, whatever is in force where it is called."""
    loss, inputs = graph(over(Workspace(), 64), make_case(length=150, neurons=24, width=8).to(torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(loss, inputs, retain_graph=True)
    for one, other in zip(inside, torch.autograd.grad(loss, inputs), strict=True):
        assert torch.equal(one, other)


def test_an_interrupted_call_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the tables of powers are filled: the next call fills them again."""

    def half(powers: Powers, log_decay: Tensor) -> None:
        powers.rising.fill_(0.5)
        raise KeyboardInterrupt

    form, case = over(Workspace()), make_case(length=20)
    with monkeypatch.context() as patch:
        patch.setattr(Powers, "set", half)
        with pytest.raises(KeyboardInterrupt):
            form(*case)
    assert_close(outcome(form, case), outcome(loop, case))


def test_threads_do_not_share_buffers() -> None:
    form = over(Workspace())
    cases = [make_case(length=40, neurons=6, seed=seed) for seed in range(4)]
    expected = [outcome(form, case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for one, other in zip(pool.map(lambda case: outcome(form, case), cases), expected, strict=True):
                assert_close(one, other, 1e-15)
