"""Planted faults and power cuts: what must be noticed, and what must survive."""
