"""Files that are no model: samples, tables, tiles, and the output folder."""
