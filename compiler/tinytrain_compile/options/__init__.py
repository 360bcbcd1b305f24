"""Options of a compilation: place, type, limits and help of each."""
