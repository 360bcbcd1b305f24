"""Which initializers are parameters, which are one parameter, which are fixed."""
