"""Instructions that schedules ask for by pattern: what they compute, in TVMScript, and the helper that is called."""
