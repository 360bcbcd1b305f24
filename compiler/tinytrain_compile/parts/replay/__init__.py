"""A reservoir of past samples (`--runtime replay`)."""
