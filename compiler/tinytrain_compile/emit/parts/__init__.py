"""Parts of a project that are generated only if they are asked for."""
