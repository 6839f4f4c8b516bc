"""Fires past slots: the rows of backfills, the worker and one transaction of it."""
