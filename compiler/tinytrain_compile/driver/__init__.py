"""One compilation: the order of the stages, and the loops that go round them. Stages do not import this."""
