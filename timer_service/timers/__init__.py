"""Timers: `ScheduleTimer` in, `DueTimeReached` out."""
