"""Kernels that are called for a few rows of a map at a time (docs/adr/0011-row-blocks.md)."""
