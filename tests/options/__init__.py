"""What options read."""
