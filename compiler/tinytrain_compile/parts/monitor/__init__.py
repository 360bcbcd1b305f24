"""Monitor of a training loop (`--runtime monitor`)."""
