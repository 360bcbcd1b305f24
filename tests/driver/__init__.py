"""What runs the stages: checks, search, code, the derivative check."""
