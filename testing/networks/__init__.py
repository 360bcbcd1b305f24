"""Networks to import and train: small ones, real ones, random ones, the zoos."""
