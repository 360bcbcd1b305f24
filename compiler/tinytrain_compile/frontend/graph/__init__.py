"""What each tensor of the file has become in the graph, and how handlers add to it."""
