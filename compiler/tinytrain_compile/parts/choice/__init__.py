"""Channels that the device chooses (`chosen = "device"` in a scheme)."""
