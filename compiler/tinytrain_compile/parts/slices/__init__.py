"""A step that is computed in slices of time (`--slices on`)."""
