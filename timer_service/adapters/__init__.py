"""Drivers behind the core's ports. Each imports its driver and the core; never a slice, never another adapter."""
