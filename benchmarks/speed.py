"""Training step, peak memory and decoding against the plain BDH of `plain_bdh.py`.

Both get the same weights, tokens, threads and allocator setting. "plain bf16" is the plain code under autocast, the
harder baseline. No dropout, no optimizer: forward and backward.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import torch

from wyrmling.config.schema.model import Model as ModelConfig
from wyrmling.model import Model
from wyrmling.training.machine import keep_freed_memory
from wyrmling.watch.memory import current_memory, peak_memory

from . import harness
from .plain_bdh import PlainBDH, as_ours


@dataclass(frozen=True)
class Size:
    """A model and the batch it is trained on."""

    name: str
    n_layer: int
    n_embd: int
    n_head: int
    multiplier: int
    rows: int
    length: int

    @property
    def label(self) -> str:
        return f"{self.name}, T={self.length}, B={self.rows}"


def small(length: int, rows: int) -> Size:
    return Size("small (4 layers, D=128, H=4, N=1024)", 4, 128, 4, 32, rows, length)


SIZES = [
    small(256, 8),
    small(512, 4),
    small(2048, 1),
    Size("default (6 layers, D=256, H=4, N=8192)", 6, 256, 4, 128, 2, 512),
    small(8192, 1),
]
SHORT, LONG = SIZES[:-1], SIZES[-1:]  # a plain step of the long one takes minutes
DECODING = [100, 300, 1000]


def pair(size: Size) -> tuple[PlainBDH, Model]:
    """A plain model and ours with the same weights."""
    torch.manual_seed(0)
    sizes = {"n_layer": size.n_layer, "n_embd": size.n_embd, "n_head": size.n_head}
    plain = PlainBDH(**sizes, multiplier=size.multiplier, dropout=0.0)
    ours = Model(ModelConfig(**sizes, mlp_internal_dim_multiplier=size.multiplier, dropout=0.0), 256)
    ours.load_state_dict(as_ours(plain))
    return plain, ours


def plain_step(model: PlainBDH, tokens: torch.Tensor, targets: torch.Tensor, low: bool) -> None:
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        _, loss = model(tokens, targets)
    loss.backward()


def our_step(model: Model, tokens: torch.Tensor, targets: torch.Tensor, low: bool) -> None:
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        hidden, _ = model(tokens, carry=False)
        loss = model.loss_sum(hidden, targets) / targets.numel()
    loss.backward()


def batch(size: Size) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    both = torch.randint(0, 256, (2, size.rows, size.length), generator=generator)
    return both[0], both[1]


def training(sizes: list[Size], rounds: int) -> str:
    """Tokens per second of a training step, as ratios to plain float32 and to plain bfloat16."""
    rows = []
    for size in sizes:
        plain, ours = pair(size)
        tokens, targets = batch(size)
        times = harness.interleaved(
            {
                "plain float32": lambda p=plain, a=tokens, b=targets: plain_step(p, a, b, False),
                "plain bf16": lambda p=plain, a=tokens, b=targets: plain_step(p, a, b, True),
                "ours float32": lambda m=ours, a=tokens, b=targets: our_step(m, a, b, False),
                "ours bf16": lambda m=ours, a=tokens, b=targets: our_step(m, a, b, True),
            },
            rounds,
        )
        count = tokens.numel()
        rows.append(
            [
                size.label,
                f"{count / times['plain float32'].median:,.0f}",
                f"{count / times['plain bf16'].median:,.0f}",
                f"{count / times['ours float32'].median:,.0f}",
                f"{count / times['ours bf16'].median:,.0f}",
                f"{times['plain float32'].median / times['ours float32'].median:.2f}",
                f"{times['plain float32'].median / times['ours bf16'].median:.2f}",
                f"{times['plain bf16'].median / times['ours bf16'].median:.2f}",
            ]
        )
        print(rows[-1], flush=True)
    header = [
        "training step, tokens/s",
        "plain float32",
        "plain bf16",
        "ours float32",
        "ours bf16",
        "float32 / plain float32",
        "bf16 / plain float32",
        "bf16 / plain bf16",
    ]
    return harness.table(header, rows)


def memory(sizes: list[Size]) -> str:
    """Peak resident memory of one training step above the process's base."""
    rows = []
    for size in sizes:
        used = {
            who: harness.peak_memory("benchmarks.speed", {"who": who, "size": SIZES.index(size)})
            for who in ("plain", "keep", "recompute")
        }
        rows.append(
            [
                size.label,
                *(f"{used[who] / 1e6:,.0f} MB" for who in used),
                f"{used['plain'] / used['keep']:.1f}",
                f"{used['plain'] / used['recompute']:.1f}",
            ]
        )
        print(rows[-1], flush=True)
    header = [
        "peak memory of a float32 step",
        "plain",
        "ours, keep",
        "ours, recompute",
        "plain / keep",
        "plain / recompute",
    ]
    return harness.table(header, rows)


def measure(arguments: dict[str, object]) -> int:
    """In a child process: the peak of one step above the base."""
    size = SIZES[int(str(arguments["size"]))]
    plain, ours = pair(size)
    tokens, targets = batch(size)
    base = current_memory()
    if arguments["who"] == "plain":
        plain_step(plain, tokens, targets, False)
    else:
        ours.layer_step.recompute = arguments["who"] == "recompute"
        our_step(ours, tokens, targets, False)
    return peak_memory() - base


@torch.inference_mode()
def decoding(size: Size, lengths: list[int], rounds: int) -> str:
    """Time of one more token after `length` tokens: plain runs the prefix again, ours reads one token."""
    plain, ours = pair(size)
    rows = []
    for length in lengths:
        tokens = torch.randint(0, 256, (1, length))
        _, state = ours(tokens)
        token = tokens[:, -1:]

        def one_token(given: torch.Tensor = token, state: object = state) -> torch.Tensor:
            hidden, _ = ours(given, state)
            return ours.logits(hidden)

        times = harness.interleaved({"plain": lambda t=tokens: plain(t)[0], "ours": one_token}, rounds)
        ratio = times["plain"].median / times["ours"].median
        rows.append(
            [
                f"{size.name}, length {length}",
                f"{1 / times['plain'].median:.2f}",
                f"{1 / times['ours'].median:.1f}",
                f"{ratio:.1f}",
            ]
        )
        print(rows[-1], flush=True)
    return harness.table(["decoding, tokens/s", "plain", "ours", "ours / plain"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the small model at short lengths only")
    parser.add_argument("--long", action="store_true", help="T = 8192 only, three rounds")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(measure(json.loads(options.measure)))
        return
    print(
        f"allocator: {keep_freed_memory().value}; threads: {torch.get_num_threads()}; torch {torch.__version__}\n"
    )
    if options.long:
        tables = [training(LONG, 3), memory(LONG)]
    else:
        sizes = SIZES[:2] if options.quick else SHORT
        tables = [training(sizes, options.rounds), memory(sizes)]
        tables.append(decoding(SIZES[0], DECODING, options.rounds))
        if not options.quick:
            tables.append(decoding(SIZES[3], DECODING, 3))
    print("\n" + "\n\n".join(tables))


if __name__ == "__main__":
    main()
