"""The loss that a file or a user has written: which part of the graph it is, and what kind."""
