"""Saves one more checkpoint under a limit on file size, as on a full disk. Run by the test of full disks.

    python full_disk_writer.py ROOT LIMIT_BYTES

Ends with the exit code of the error, its text on stderr.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

from wyrmling.checkpoint import prune, save_checkpoint, write_pointer
from wyrmling.errors import WyrmlingError


def main() -> int:
    root, limit = Path(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        tensors = {"small": torch.zeros(3), "large": torch.zeros(100_000)}
        save_checkpoint(root, 20, {"optimizer": {"x": torch.zeros(3)}, "model": tensors}, {"step": 20})
        write_pointer(root, "latest", 20)
        prune(root, keep=1, best=None)
    except WyrmlingError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
