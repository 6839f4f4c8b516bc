"""The login at the broker, from the settings."""

from collections.abc import Mapping
from typing import Any

from timer_service.adapters.nats.connection import Login
from timer_service.config import Config


def nats_login(config: Config) -> Login:
    """Return the NATS login from the settings. Reads the files with secrets."""
    return Login(
        user=config.broker_user,
        password=config.secret("broker_password"),
        token=config.secret("nats_token"),
        nkey_seed=config.secret("nats_nkey_seed"),
        credentials=config.nats_credentials,
        tls_ca=config.broker_tls_ca,
        tls_cert=config.broker_tls_cert,
        tls_key=config.broker_tls_key,
    )


def login_options(config: Config) -> Mapping[str, Any]:
    """Read every file of the NATS login, and return the options for `nats.connect`.

    Raises `StartError` with the name of a setting that cannot be used.
    """
    return nats_login(config).options()
