"""Cases of every operator: random operands and attributes, by number."""
