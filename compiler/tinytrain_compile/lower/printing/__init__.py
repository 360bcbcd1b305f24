"""Printers of lowered TIR as C text."""
