"""Integer sums in pairs of int16: SMLAD where the core has it, the same loops in plain C where not."""
