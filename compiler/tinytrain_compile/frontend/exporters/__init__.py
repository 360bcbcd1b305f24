"""What exporters leave in a file: which initializers they computed, tied or folded, told by names and numbers."""
