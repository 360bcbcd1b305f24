"""The numpy reference: the training step that the C is compared with."""
