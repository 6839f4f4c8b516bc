"""Finds the database for a command of the CLI."""

from timer_service.cli.dev_server import find_dev_server
from timer_service.config import Config, load_config

_DATABASE_SETTINGS = {"db_path", "database_url", "database_url_file"}


def database_config() -> Config:
    """Return the settings, with the database of the `dev` of this folder if it runs and no database is named."""
    config = load_config()
    if not config.model_fields_set & _DATABASE_SETTINGS and (dev := find_dev_server()) is not None:
        return dev.configure(config)
    return config
