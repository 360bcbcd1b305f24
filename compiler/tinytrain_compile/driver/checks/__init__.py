"""Checks of options against each other, the model and the data, before anything is planned."""
