"""The state of an import: each tensor of the file in the graph, and how handlers add nodes."""
