"""What tests, benchmarks and scripts share: models, cases of operators, runs of kernels. None of it is installed."""
