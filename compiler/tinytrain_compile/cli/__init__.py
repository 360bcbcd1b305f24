"""The command: options in, the report block or one error line out. Holds no compiler logic."""
