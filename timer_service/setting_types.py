"""The types of settings: how the text of a variable becomes a value, and what is wrong with it if it cannot."""

import os
import re
import stat
import tomllib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode

from timer_service.core.limits.tenant_limits import TenantLimits
from timer_service.core.values.broker_url import broker_of
from timer_service.core.values.budget import MIB
from timer_service.core.values.codec import plain_words

_T = TypeVar("_T")
_SUBJECT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_MOST_FILE_MIB = 1
"""The largest file with a secret, with credentials or with certificates. The certificates of a system have 0.3 MiB."""
_MOST_LIMITS_MIB = 16
"""The largest file with limits: that of 100,000 tenants."""


def _milliseconds(value: object) -> object:
    """Return the duration of a text. A default and an override is a duration already."""
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(milliseconds=int(str(value)))
    except (ValueError, OverflowError) as error:
        raise PydanticCustomError("milliseconds", "must be a whole number of milliseconds") from error


def _broker_url(value: str) -> str:
    """Return the URLs without spaces around the commas."""
    urls = [url.strip() for url in value.split(",")]
    found = {broker_of(url) for url in urls}
    if None in found or len(found) > 1 or (len(urls) > 1 and found != {"nats"}):
        raise PydanticCustomError(
            "broker_url",
            "must be nats://host:port, redis://host:port or amqp://host:port, such as nats://localhost:4222, or with "
            "TLS tls://, rediss:// or amqps://; only several URLs of NATS can be separated with commas",
        )
    return ",".join(urls)


def _is_postgres_url(url: str) -> bool:
    """Return whether a URL is one of PostgreSQL whose password is percent-encoded.

    A raw / ? or # in the password would make its rest a database name or a parameter, which error messages show.
    """
    try:
        parts = urlsplit(url)
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
        port = parts.port
    except ValueError:  # an impossible port or IPv6 address, or a query that is none
        return False
    is_encoded = "@" not in parts.path and not parts.fragment
    return parts.scheme in {"postgresql", "postgres"} and port != 0 and is_encoded


def _check_database_url(url: str) -> None:
    if not _is_postgres_url(url):
        raise PydanticCustomError(
            "database_url",
            "must be postgresql://user:password@host:port/database, such as postgresql://timer:p%2Fw@localhost/timer; "
            "the characters / ? # @ : % in the password must be percent-encoded",
        )


def is_subject(value: str) -> bool:
    """Return whether a text consists of words of letters, digits, _ and -, joined by dots."""
    return _SUBJECT.fullmatch(value) is not None


def _check_subject(value: str) -> None:
    if not is_subject(value):
        raise PydanticCustomError(
            "subject", "must be words of letters, digits, _ and -, joined by dots, such as timer or acme.timer"
        )


def read_secret(path: Path) -> str:
    """Return the secret in a file. Raises `PydanticCustomError`, with a reason for users, if it has none."""
    try:
        content = _read(path, _MOST_FILE_MIB).decode().strip()
    except UnicodeDecodeError as error:
        raise PydanticCustomError("file", "names a file that is not UTF-8 text; write the secret as text") from error
    if not content:
        raise PydanticCustomError("file", "names an empty file; write the secret into it")
    return content


def read_database_url(path: Path) -> str:
    """Return the URL of a PostgreSQL database in a file. Raises `PydanticCustomError` as `read_secret` does."""
    url = read_secret(path)
    _check_database_url(url)
    return url


def _read(path: Path, most_mib: int) -> bytes:
    """Return the content of a regular file. Nothing else is opened: a FIFO would wait for a writer forever."""
    most_bytes = most_mib * MIB
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _unreadable(path, "it is not a regular file")
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error.strerror or type(error).__name__) from error
    if len(content) > most_bytes:
        raise _unreadable(path, f"it has more than {most_mib} MiB")
    return content


def _unreadable(path: Path, reason: str) -> PydanticCustomError:
    """Return the error of a file. A path that does not exist is not quoted: it may be the secret itself."""
    return PydanticCustomError(
        "file",
        "{path}cannot be read ({reason}); give the path of a readable file, such as /run/secrets/timer",
        {"path": f"{path} " if os.path.lexists(path) else "", "reason": reason},
    )


def _limits(path: object) -> object:
    """Return the limits in a TOML file. Limits that an override gives are returned as they are."""
    if isinstance(path, TenantLimits):
        return path
    text = _read(Path(str(path)), _MOST_LIMITS_MIB).decode("utf-8", "replace")
    try:
        return TenantLimits.model_validate(tomllib.loads(text))
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, each['loc']))}: {plain_words(each['msg'])}" for each in error.errors())
        reason = f"{path}: {'; '.join(lines)}"
    except RecursionError:
        reason = f"{path} is not TOML: it is nested too deeply"
    except ValueError as error:
        reason = f"{path} is not TOML: {error}"
    raise PydanticCustomError("limits", "{reason}", {"reason": reason})


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """Return the validator of a value that stays as it is. `check` raises an error if the value is wrong."""

    def validate(value: _T) -> _T:
        check(value)
        return value

    return AfterValidator(validate)


Milliseconds = Annotated[
    timedelta, BeforeValidator(_milliseconds), Field(ge=timedelta(milliseconds=1), le=timedelta(days=1))
]
"""A duration, written as a whole number of milliseconds from 1 ms to a day."""

SecretFile = Annotated[Path, _checked(read_secret)]
"""The path of a file that contains a secret."""

ReadableFile = Annotated[Path, _checked(lambda path: _read(path, _MOST_FILE_MIB))]
"""The path of a readable file."""

LimitsFile = Annotated[TenantLimits, NoDecode, BeforeValidator(_limits)]
"""The limits of the tenants, written as the path of a TOML file."""

BrokerUrl = Annotated[str, AfterValidator(_broker_url)]
"""The URL of a broker. Several of NATS are separated by commas."""

DatabaseUrl = Annotated[SecretStr, _checked(lambda url: _check_database_url(url.get_secret_value()))]
"""The URL of a PostgreSQL database."""

DatabaseUrlFile = Annotated[Path, _checked(read_database_url)]
"""The path of a file that contains such a URL."""

Subject = Annotated[str, _checked(_check_subject)]
"""The first words of subjects."""

InLowerCase = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
"""Lets a word be written in upper case."""
