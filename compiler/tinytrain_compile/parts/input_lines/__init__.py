"""An image that comes row by row (`--input-lines`)."""
