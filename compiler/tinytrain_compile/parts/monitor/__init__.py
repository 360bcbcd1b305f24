"""What a training loop watches (`--runtime monitor`)."""
