"""COMPOSITION ROOT: builds database, broker, slices and HTTP from Config, runs and stops them."""

from timer_service.app.opening import nats_login, open_app, open_dev_app
from timer_service.app.schema import apply_migrations, migrations, unapplied_migrations
from timer_service.app.service import App

__all__ = [
    "App",
    "apply_migrations",
    "migrations",
    "nats_login",
    "open_app",
    "open_dev_app",
    "unapplied_migrations",
]
