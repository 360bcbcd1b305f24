"""Golden samples that judge a trained model (`--guard`)."""
