"""Files that are neither a model nor samples: tables, the output folder and what lies in it."""
