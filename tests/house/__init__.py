"""What holds the repository together: rules, packaging, tiers of tests."""
