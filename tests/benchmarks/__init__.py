"""The benchmarks and their entry point."""
