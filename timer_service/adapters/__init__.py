"""Implementations of the core's ports. An adapter imports its driver and the core, no slice and no other adapter."""
