"""Chains of maps that are computed row by row."""
