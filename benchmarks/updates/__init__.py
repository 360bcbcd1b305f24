"""Benchmarks of the choice what to train: `--update auto`, schemes, channels."""
