"""Benchmarks of low-rank activations (docs/results-activations.md)."""
