"""Instructions of a core: those that schedules ask for by pattern, and vectors of four."""
