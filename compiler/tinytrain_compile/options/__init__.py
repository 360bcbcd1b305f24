"""What a user may ask for: every option with its place, type, limits and help."""
