"""Rows of the report, by subject: in words for the terminal, and as data."""
