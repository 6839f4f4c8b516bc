"""Fires due slots: the worker, one transaction of it, and the order of schedules in it."""
