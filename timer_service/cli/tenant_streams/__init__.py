"""Streams of their own for tenants, which the operator sets up."""
