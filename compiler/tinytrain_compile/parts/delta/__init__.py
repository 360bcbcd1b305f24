"""What training has changed, as a message (`--runtime delta`, docs/fleet.md)."""
