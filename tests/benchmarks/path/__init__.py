"""Benchmarks of the way of a record: see docs/lab/performance.md. ``make bench BENCH_ARGS="path --help"``."""
