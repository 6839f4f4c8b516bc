"""Which broker a program uses: the one that it names, TIMER_BROKER_URL, the `dev` of this folder, or the default."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from timer_service.client.errors import NoAnswerError
from timer_service.dev_server import DEFAULT_FOLDER, DevServer, find_dev_server, is_dev_server

DEFAULT_URL = "nats://localhost:4222"
_VARIABLE = "TIMER_BROKER_URL"
_SETTINGS_FILE = ".env"
_NAME_IT = f"name a server with {_VARIABLE}"


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker, and why a program uses it. As a text, it has no login."""

    url: str
    """Several URLs have commas between them."""
    reason: str
    dev: DevServer | None = None
    """The running `dev` whose broker it is."""

    def __str__(self) -> str:
        return f"{url_without_login(self.url)} ({self.reason})"


def find_broker(url: str | None = None) -> Broker:
    """Return the broker that a program uses: every command and every example finds it in this way.

    It is `url`, else TIMER_BROKER_URL from the environment, else from `.env` (if python-dotenv is installed), else the
    `dev` that runs in this folder, else nats://localhost:4222. Raises `NoAnswerError` if this folder has a `dev` that
    does not run, because another service may have the default address, and if a `dev` of another folder has it. May
    wait up to 5 s for the `dev`.
    """
    if url is not None:
        return Broker(url, "as given")
    named = _find_variable(os.environ) or _find_variable(_read_settings_file())
    if named is not None:
        return Broker(named, _VARIABLE)
    dev = find_dev_server()
    if dev is not None:
        return Broker(dev.broker_url, "the `dev` of this folder", dev)
    if os.path.isdir(DEFAULT_FOLDER):  # noqa: PTH112 - Path.is_dir raises PermissionError
        raise NoAnswerError(
            f"the `dev` of this folder ({DEFAULT_FOLDER.absolute()}) is not running; "
            f"start it with `timer-service dev`, or {_NAME_IT}"
        )
    if is_dev_server(DEFAULT_URL):
        raise NoAnswerError(
            f"{DEFAULT_URL} is the `dev` of another folder; use that folder, start one here with `timer-service dev`, "
            f"or {_NAME_IT}"
        )
    return Broker(DEFAULT_URL, "the default")


def url_without_login(urls: str) -> str:
    """Return broker URLs without users and passwords. If one of them has a login, return only the last URL."""
    # Not with a parser: it would take the wrong part of a password that contains one of the characters /#?,
    scheme, separator, _ = urls.partition("://")
    return urls if "@" not in urls else f"{scheme if separator else 'nats'}://{urls.rpartition('@')[2]}"


def _find_variable(values: Mapping[str, str | None]) -> str | None:
    """Return the URL among variables. As for every setting, upper and lower case are alike, and empty is not set."""
    return next((value for name, value in values.items() if value and name.upper() == _VARIABLE), None)


def _read_settings_file() -> Mapping[str, str | None]:
    """Return the variables of `.env` in this folder. Raises `NoAnswerError` if it cannot be read."""
    try:
        from dotenv import dotenv_values  # noqa: PLC0415 - optional
    except ImportError:
        return {}
    try:
        return dotenv_values(_SETTINGS_FILE, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoAnswerError(f"cannot read {_SETTINGS_FILE}: {error}") from error
