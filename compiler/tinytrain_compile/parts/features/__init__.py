"""A step that is cut where training begins (`--features on`)."""
