"""The learning rate of every update (`--runtime schedule`)."""
