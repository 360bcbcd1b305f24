"""Graphs to plan, and oracles of what plans and searches answer."""
