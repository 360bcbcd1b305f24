"""Tests of how operators are computed."""
