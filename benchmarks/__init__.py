"""Long-running experiments: `make convergence` and friends."""
