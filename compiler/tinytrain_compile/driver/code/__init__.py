"""From a plan to the project: which code the nodes get, the generated sources, and their verification."""
