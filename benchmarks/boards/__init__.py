"""Builds for boards and for the package formats of tool chains."""
