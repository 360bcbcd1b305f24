"""Measurements and long experiments, a folder for each subject; `python -m benchmarks` lists and runs them."""
