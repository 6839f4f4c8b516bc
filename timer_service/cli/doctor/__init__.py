"""`timer-service doctor`: looks at what the service stands on, changes nothing, and says what to mend."""

from timer_service.cli.doctor.command import doctor

__all__ = ["doctor"]
