"""Queries and requests of workers: bounded, in turns, answered."""
