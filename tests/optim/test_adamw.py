"""AdamW is PyTorch's own; neither it nor Muon loads PyTorch's compiler."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from wyrmling.optim.adamw import AdamW


def trained(kind: type[torch.optim.AdamW], fused: bool) -> tuple[list[torch.Tensor], dict[str, object]]:
    """Weights after five updates, with the moments put away and taken back in the middle."""
    generator = torch.Generator().manual_seed(3)
    weights = [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in ((5, 3), (7,))]
    groups = [{"params": weights[:1], "weight_decay": 0.1}, {"params": weights[1:], "weight_decay": 0.0}]
    optimizer = kind(groups, lr=1e-2, betas=(0.9, 0.95), fused=fused)
    for step in range(5):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
        optimizer.zero_grad()
        assert all(weight.grad is None for weight in weights)
        if step == 2:
            kept = copy.deepcopy(optimizer.state_dict())
            optimizer = kind(groups, lr=1e-2, betas=(0.9, 0.95), fused=fused)
            optimizer.load_state_dict(kept)
    return [weight.detach() for weight in weights], optimizer.state_dict()


@pytest.mark.parametrize("fused", [True, False])
def test_weights_and_moments_are_those_of_pytorch(fused: bool) -> None:
    ours, theirs = trained(AdamW, fused), trained(torch.optim.AdamW, fused)
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert torch.equal(mine, other)
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=0)


def test_an_update_is_no_part_of_a_graph_and_takes_a_closure() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([weight], lr=0.1)

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()
        return float(loss.detach())

    with torch.enable_grad():
        assert optimizer.step(closure) == 3.0
        assert torch.is_grad_enabled()
    assert weight.is_leaf
    assert float(weight.detach().max()) < 1.0


def test_the_compiler_is_not_loaded() -> None:
    code = (
        "import sys, torch\n"
        "from wyrmling.optim import Muon, MuonSettings\n"
        "from wyrmling.optim.adamw import AdamW\n"
        "weight, matrix = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3, 4))\n"
        "halves = [{'params': [weight]}, {'params': [matrix], 'muon': True}]\n"
        "for optimizer in AdamW([weight], lr=0.1, fused=True), Muon(halves, MuonSettings(), lr=0.1):\n"
        "    weight.grad, matrix.grad = torch.ones(3), torch.ones(3, 4)\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    optimizer.load_state_dict(optimizer.state_dict())\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
