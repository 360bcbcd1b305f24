"""Searches: for an update, a micro-batch, a board, the smallest arena, and ways out if nothing fits."""
