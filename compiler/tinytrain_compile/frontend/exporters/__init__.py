"""Traces of exporters: names and numbers tell which initializers they computed, tied or folded."""
