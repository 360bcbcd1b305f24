"""Checks before the stages."""
