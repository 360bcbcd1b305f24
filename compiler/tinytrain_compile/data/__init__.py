"""Samples and labels of the user: read, checked against the model, and put into the graph's layout."""
