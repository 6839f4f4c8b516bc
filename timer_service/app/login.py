"""The login at the broker, from the settings."""

from collections.abc import Mapping
from functools import partial
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


def user_and_password(config: Config) -> Mapping[str, Any]:
    """Return the login of a broker that has no other kinds, as far as it is set. Reads the file with the password."""
    return {"user": config.broker_user, "password": config.secret("broker_password")}


def redis_tls(config: Config) -> Mapping[str, Any]:
    """Return the options of the Redis client for the files of TLS that are set."""
    files = {
        "ssl_ca_certs": config.broker_tls_ca,
        "ssl_certfile": config.broker_tls_cert,
        "ssl_keyfile": config.broker_tls_key,
    }
    return {name: str(file) for name, file in files.items() if file is not None}


def client_login(config: Config) -> Mapping[str, Any]:
    """Return the options of a client of any broker that are a login. The files are read at each connect."""
    if config.broker != "redis":
        return {"login": partial(login_options, config)}
    return {"login": partial(user_and_password, config), **redis_tls(config)}
