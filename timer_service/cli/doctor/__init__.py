"""`timer-service doctor`: read-only checks of the service, the broker, its streams, the database and the clocks."""

from timer_service.cli.doctor.command import doctor

__all__ = ["doctor"]
