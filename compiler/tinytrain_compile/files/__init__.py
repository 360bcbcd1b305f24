"""Files that are no model: samples, tables, and the output folder."""
