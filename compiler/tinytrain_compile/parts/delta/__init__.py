"""Changes by training as a message (`--runtime delta`, docs/fleet.md)."""
