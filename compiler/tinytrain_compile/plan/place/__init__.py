"""Offsets in the arena for a given order."""
