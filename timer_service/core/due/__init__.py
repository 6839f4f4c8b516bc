"""Whose turn a row is, who holds it, and what happens if its work fails: leases, loops and wake-ups."""
