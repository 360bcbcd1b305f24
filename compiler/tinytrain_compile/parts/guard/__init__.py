"""The guard of a trained model (`--guard`)."""
