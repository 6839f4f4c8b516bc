"""Which slots a recurrence has: cron expressions, time zones and fixed distances. It knows nothing of schedules."""
