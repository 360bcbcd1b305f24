"""Plans of one training graph each, made as the options ask: what every search and every check plans with."""
