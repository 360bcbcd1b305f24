"""Linked images for boards: how they are built, and what is in them."""
