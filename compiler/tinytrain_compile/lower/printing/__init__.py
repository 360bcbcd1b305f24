"""From lowered TIR to C text."""
