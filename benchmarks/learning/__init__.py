"""Benchmarks of learning itself: accuracy, rates, number formats; with the tasks they share."""
