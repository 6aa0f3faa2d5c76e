"""What several benchmarks do the same way."""
