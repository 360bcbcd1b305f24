"""Files of the user: formulas, output folders."""
