"""Benchmarks of memory plans and what a step becomes by them: arenas, orders, placement, slices, time."""
