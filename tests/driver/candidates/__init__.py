"""The search for an update."""
