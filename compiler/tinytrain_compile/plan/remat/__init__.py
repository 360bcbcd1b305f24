"""Second runs: tensors that are computed again instead of kept."""
