"""Several plans in one project (`--plans`)."""
