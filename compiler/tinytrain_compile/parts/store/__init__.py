"""Checkpoints in flash that survive power cuts (`--runtime store`)."""
