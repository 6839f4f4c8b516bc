"""Benchmarks of the real service over a real broker (see README.md)."""
