"""Benchmarks of low-rank activations (docs/activations.md)."""
