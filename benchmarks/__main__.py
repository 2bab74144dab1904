"""`python -m benchmarks`: everything, as Markdown tables."""

from .speed import main

main()
