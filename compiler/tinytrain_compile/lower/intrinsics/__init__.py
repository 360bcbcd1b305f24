"""Instructions of a core: those that schedules request by pattern, and vectors of four."""
