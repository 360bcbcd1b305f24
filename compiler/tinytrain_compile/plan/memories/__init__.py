"""Tensors in several memories: what lies where, when pages move, what that costs."""
