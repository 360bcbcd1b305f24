"""The order of a step: searches, exact solutions, bounds."""
