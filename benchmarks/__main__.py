"""`python -m benchmarks`: measure, and write what was measured into docs/results.md and recorded.json."""

from __future__ import annotations

import sys

from .command import main

sys.exit(main())
