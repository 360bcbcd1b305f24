"""Tests of what operators mean."""
