"""A journal of every update in a hash chain (`--runtime journal`, docs/journal.md)."""
