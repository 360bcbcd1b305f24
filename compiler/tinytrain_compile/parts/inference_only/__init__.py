"""A project that does not train (`--inference-only`)."""
