"""Benchmarks of generated kernels: instructions, cycles by a model, results on random shapes."""
