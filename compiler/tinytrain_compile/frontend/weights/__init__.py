"""The choice of parameters: which initializers are trained, share one parameter, or stay fixed."""
