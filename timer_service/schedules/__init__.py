"""Recurring schedules."""
