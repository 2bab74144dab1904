"""Kills a process that saves without pause, again and again, and checks what it leaves.

    python kill_harness.py ROOT MODE KILLS SEED

MODE "new" saves steps 1, 2, 3, ... with pointers and retention, as a run does; "same" replaces step 7 for
ever. The victim is forked, so that the time of the kill falls on its start (cleaning, reading) and its saves,
not on the import of torch. While it runs, every second victim is watched by a reader, which must never see
a half checkpoint. Prints a line of JSON: how many kills left something unfinished, and how many saves there
were.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from wyrmling.checkpoint import (
    Checkpoint,
    checkpoint_path,
    clean,
    list_checkpoints,
    newest_good,
    prune,
    read_checkpoint,
    read_pointer,
    save_checkpoint,
    write_pointer,
)

LONGEST = 0.12  # seconds a victim may live
PAUSE = 0.005  # seconds between the saves of a watched victim: a reader needs a moment to read anything
SIZES = {"model": 30_011, "optimizer": 60_013, "streams-0": 17}


def content(number: int) -> dict[str, dict[str, Tensor]]:
    return {
        part: {"x": torch.full((size,), float(number)), "y": torch.arange(3) + number}
        for part, size in SIZES.items()
    }


def check(checkpoint: Checkpoint, mode: str) -> int:
    """The save's number, after asserting that all of the checkpoint belongs to it."""
    number = checkpoint.progress["number"]
    assert checkpoint.step == (7 if mode == "same" else number)
    expected = content(number)
    assert checkpoint.parts.keys() == expected.keys()
    for part, tensors in expected.items():
        assert all(torch.equal(checkpoint.parts[part][name], tensors[name]) for name in tensors), part
    return int(number)


def fail(path: Path, reason: str) -> None:
    raise AssertionError(f"a kill left a damaged checkpoint: {reason}")


def victim(root: Path, mode: str, acknowledge: int, pause: float) -> None:
    clean(root)
    last = newest_good(root, on_damaged=fail)
    number = check(last, mode) if last is not None else 0
    while True:
        number += 1
        step = 7 if mode == "same" else number
        save_checkpoint(root, step, content(number), {"number": number})
        os.write(acknowledge, f"{number}\n".encode())
        write_pointer(root, "latest", step)
        if number % 5 == 0:
            write_pointer(root, "best", step)
        prune(root, keep=1, best=read_pointer(root, "best"))
        time.sleep(pause)


def watch(root: Path, mode: str, until: float) -> None:
    """Read without pause: once there was a checkpoint there is always one, whole, and never an older one."""
    newest = 0
    while time.monotonic() < until:
        checkpoint = newest_good(root, on_damaged=fail)
        if checkpoint is None:
            assert newest == 0
        else:
            number = check(checkpoint, mode)
            assert number >= newest
            newest = number


def one_kill(root: Path, mode: str, lifetime: float, watched: bool) -> tuple[bool, int]:
    """Whether something unfinished was left, and the last save the victim reported as done (0: none)."""
    reading, writing = os.pipe()
    until = time.monotonic() + lifetime
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            victim(root, mode, writing, PAUSE if watched else 0.0)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        if watched:
            watch(root, mode, until)
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the victim ended by itself: see its traceback"
    with os.fdopen(reading) as pipe:
        done = [int(line) for line in pipe]
    unfinished = any(root.glob(".*")) if root.exists() else False
    checkpoint = newest_good(root, on_damaged=fail)
    number = check(checkpoint, mode) if checkpoint is not None else 0
    last = done[-1] if done else 0
    assert number in (last, last + 1) or not done, "a save that was reported as done is not there"
    for step in list_checkpoints(root):
        check(read_checkpoint(checkpoint_path(root, step)), mode)
    for name in ("latest", "best"):
        pointer = read_pointer(root, name)  # type: ignore[arg-type]
        assert pointer is None or pointer in list_checkpoints(root), f"{name} names a checkpoint that is gone"
    return unfinished, last


def main() -> None:
    root, mode, kills, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    moments = random.Random(seed)
    unfinished = saves = 0
    for count in range(kills):
        left, last = one_kill(root, mode, moments.uniform(0, LONGEST), watched=count % 2 == 1)
        unfinished += left
        saves = max(saves, last)
    clean(root)
    assert not any(root.glob(".*"))
    print(json.dumps({"unfinished": unfinished, "saves": saves}))


if __name__ == "__main__":
    main()
