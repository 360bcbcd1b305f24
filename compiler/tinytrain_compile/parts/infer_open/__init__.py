"""An inference in memory of its own, while a step is open (`--slices infer`)."""
