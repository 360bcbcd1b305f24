"""Tensors in several memories: their places, page moves, and costs."""
