"""Integer sums in pairs of int16: SMLAD if the core has it, else the same loops in plain C."""
