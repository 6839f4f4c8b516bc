"""Settings: TIMER_* variables and `.env`, read once into a frozen `Config`. `.env.example` explains each of them."""

import difflib
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, DotEnvSettingsSource, SettingsConfigDict

from timer_service.core.errors import StartError

_PREFIX = "TIMER_"
_FILE = ".env"
_OTHERS = (
    "TIMER_SERVICE_",  # Kubernetes injects these for a Service named timer-service
    "TIMER_TEST_",  # the tests'
)
_LOGINS = ("nats_user", "nats_token", "nats_nkey_seed", "nats_credentials")
_SUBJECT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)


def _milliseconds(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(milliseconds=int(str(value)))
    except (ValueError, OverflowError) as error:
        raise PydanticCustomError("milliseconds", "must be a whole number of milliseconds, such as 5000") from error


def _broker_url(value: str) -> str:
    urls = [url.strip() for url in value.split(",")]
    if not all(map(_is_nats, urls)):
        raise PydanticCustomError(
            "broker_url", "must be nats://host:port or tls://host:port, several separated by commas"
        )
    return ",".join(urls)


def _is_nats(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"nats", "tls"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an impossible port or IPv6 address
        return False


def _database_url(value: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(value.get_secret_value())
        known = parts.scheme in {"postgresql", "postgres"} and parts.port != 0
        # What follows a /, ? or # of the password would be told as the name of a database or the like.
        known = known and "@" not in parts.path and not parts.fragment
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        known = False
    if not known:
        raise PydanticCustomError(
            "database_url",
            "must be postgresql://user:password@host:port/database, with / ? # @ : % of a password percent-encoded",
        )
    return value


def _subject(value: str) -> str:
    if not _SUBJECT.fullmatch(value):
        raise PydanticCustomError("subject", "must be letters, digits, _ and - in parts joined by dots, such as timer")
    return value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _content(path: object) -> object:
    if isinstance(path, SecretStr):
        return path
    try:
        content = Path(str(path)).read_text("utf-8").strip()
    except OSError as error:
        raise PydanticCustomError("file", "can't be read: {reason}", {"reason": error.strerror}) from error
    except UnicodeDecodeError as error:
        raise PydanticCustomError("file", "is not text in UTF-8") from error
    if not content:
        raise PydanticCustomError("file", "is an empty file")
    return content


def _readable(path: Path) -> Path:
    try:
        path.open("rb").close()
    except OSError as error:
        raise PydanticCustomError("file", "can't be read: {reason}", {"reason": error.strerror}) from error
    return path


Milliseconds = Annotated[
    timedelta, BeforeValidator(_milliseconds), Field(ge=timedelta(milliseconds=1), le=timedelta(days=1))
]
"""A duration written as a whole number of milliseconds, from 1 ms to a day."""

SecretFile = Annotated[SecretStr, BeforeValidator(_content)]
"""A secret written as the path of the file that holds it."""

ReadableFile = Annotated[Path, AfterValidator(_readable)]
"""The path of a file that can be read."""


class Config(BaseSettings):
    """The settings of one instance. An empty variable counts as not set; the environment wins over `.env`."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_file=_FILE,
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",  # other programs' variables share the environment and .env; see unknown_settings
        frozen=True,
    )

    broker_url: Annotated[str, AfterValidator(_broker_url)] = "nats://localhost:4222"
    nats_user: str | None = None
    nats_password: SecretStr | None = None
    nats_password_file: SecretFile | None = None
    nats_token: SecretStr | None = None
    nats_token_file: SecretFile | None = None
    nats_nkey_seed: SecretStr | None = None
    nats_nkey_seed_file: SecretFile | None = None
    nats_credentials: ReadableFile | None = None
    nats_tls_ca: ReadableFile | None = None
    nats_tls_cert: ReadableFile | None = None
    nats_tls_key: ReadableFile | None = None
    db_path: Path = Path("./event_service.db")
    database_url: Annotated[SecretStr, AfterValidator(_database_url)] | None = None
    database_url_file: Annotated[SecretFile, AfterValidator(_database_url)] | None = None
    database_statement_cache: int = Field(default=100, ge=0, le=10_000)
    polling_interval: Milliseconds = timedelta(milliseconds=5000)
    batch_size: int = Field(default=1000, ge=1, le=1000)  # no more fit into one atomic batch of JetStream
    visibility_timeout: Milliseconds = Field(
        default=timedelta(milliseconds=30000),
        ge=timedelta(seconds=10),  # publishing alone may take 5 s; a lease must outlive it
    )
    max_attempts: int = Field(default=20, ge=1)
    retention_days: float = Field(default=7, gt=0, le=3650)
    role: Annotated[Literal["all", "handler", "worker"], BeforeValidator(_lower)] = "all"
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=9464, ge=0, le=65535)
    subject_prefix: Annotated[str, AfterValidator(_subject)] = "timer"
    reply_prefix: str = "_INBOX."
    manage_streams: bool = True
    signals_enabled: bool = True
    runs_enabled: bool = True
    auto_migrate: bool = True
    shutdown_timeout: Milliseconds = timedelta(milliseconds=20000)
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = "info"
    log_format: Annotated[Literal["json", "console"], BeforeValidator(_lower)] | None = None

    @property
    def enabled(self) -> frozenset[str]:
        """The names of the slices that are switched on, of those that can be switched off."""
        switches = {"signals": self.signals_enabled, "runs": self.runs_enabled}
        return frozenset(name for name, on in switches.items() if on)

    @field_validator("reply_prefix")
    @classmethod
    def _reply_prefix(cls, value: str, info: ValidationInfo) -> str:
        """Refuse a prefix under which clients could make the service publish commands and events of its own."""
        if not value.endswith(".") or not _SUBJECT.fullmatch(value[:-1]):
            raise PydanticCustomError("reply_prefix", "must be a subject that ends with a dot, such as _INBOX.")
        ours = f"{info.data.get('subject_prefix', '')}."
        if value.startswith(ours) or ours.startswith(value):
            raise PydanticCustomError("reply_prefix", "must lie apart from TIMER_SUBJECT_PREFIX")
        return value

    @model_validator(mode="after")
    def _one_database_url(self) -> Self:
        if len(twice := self._sources("database_url")) > 1:
            raise PydanticCustomError("database_url", f"{' and '.join(twice)}: give only one of them")
        return self

    @property
    def engine(self) -> str:
        """What runs the database: `sqlite` or `postgres`."""
        return "sqlite" if self.postgres_url is None else "postgres"

    @property
    def postgres_url(self) -> str | None:
        """Where the PostgreSQL database is; None means the SQLite file."""
        url = self.database_url or self.database_url_file
        return None if url is None else url.get_secret_value()

    @model_validator(mode="after")
    def _login(self) -> Self:
        """Refuse half a login and more than one: the driver would pick one, or none, in silence."""
        for one, other in (("nats_user", "nats_password"), ("nats_tls_cert", "nats_tls_key")):
            if bool(self._sources(one)) != bool(self._sources(other)):
                raise PydanticCustomError("login", f"{_variable(one)} and {_variable(other)} go together")
        for secret in ("nats_password", "nats_token", "nats_nkey_seed"):
            if len(twice := self._sources(secret)) > 1:
                raise PydanticCustomError("login", f"{' and '.join(twice)}: give only one of them")
        ways = [way for field in _LOGINS for way in self._sources(field)]
        if any(urlsplit(url).username for url in self.broker_url.split(",")):
            ways.append("the user in TIMER_BROKER_URL")
        if len(ways) > 1:
            raise PydanticCustomError("login", f"{' and '.join(ways)}: more than one way to authenticate")
        return self

    def _sources(self, field: str) -> list[str]:
        """Return the variables that give a setting, itself or its file."""
        return [_variable(name) for name in (field, f"{field}_file") if getattr(self, name, None) is not None]


def load_config(**overrides: Any) -> Config:
    """Read the settings; `overrides` (by field name) win over them. Raises `StartError`, a line per wrong setting."""
    if unknown := overrides.keys() - Config.model_fields.keys():
        raise TypeError(f"no such settings: {', '.join(sorted(unknown))}")
    try:
        return Config(**overrides)
    except ValidationError as error:
        raise StartError("\n".join(_complaints(error))) from error
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"can't read {_FILE}: {error}") from error


def unknown_settings(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each TIMER_* name in `environ` or `.env` that is no setting, with the nearest that is."""
    known = [_variable(field) for field in Config.model_fields]
    names = {name.upper() for name in (*environ, *DotEnvSettingsSource(Config).env_vars)}
    return [
        _unknown(name, known)
        for name in sorted(names - set(known))
        if name.startswith(_PREFIX) and not name.startswith(_OTHERS)
    ]


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else "; .env.example lists them all")


def _complaints(error: ValidationError) -> list[str]:
    """Write faults without the values, for a URL may hold a password."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return [": ".join([*(_variable(str(field)) for field in each["loc"][:1]), each["msg"]]) for each in details]


def _variable(field: str) -> str:
    return f"{_PREFIX}{field.upper()}"
