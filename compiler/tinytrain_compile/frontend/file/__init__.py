"""The file itself: read with limits, checked, in one form and in the order in which it is imported."""
