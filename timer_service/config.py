"""The settings: TIMER_* variables and `.env`, read once into a frozen `Config`. `.env.example` explains them."""

import difflib
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    ByteSize,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, DotEnvSettingsSource, SettingsConfigDict

from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, TenantLimits
from timer_service.core.values.broker_url import broker_of
from timer_service.core.values.budget import DEFAULT_MEMORY_BYTES, LEAST_MEMORY_BYTES, MIB
from timer_service.core.values.errors import StartError
from timer_service.setting_types import (
    BrokerUrl,
    DatabaseUrl,
    DatabaseUrlFile,
    InLowerCase,
    LimitsFile,
    Milliseconds,
    ReadableFile,
    SecretFile,
    Subject,
    is_subject,
    read_database_url,
    read_secret,
)

_PREFIX = "TIMER_"
_FILE = ".env"
_NOT_SETTINGS = (
    "TIMER_SERVICE_",  # Kubernetes injects these for a Service named timer-service
    "TIMER_TEST_",  # used by the tests
)
_SWITCHED_SLICES = ("signals", "runs", "schedules", "workflows")
_LOGINS = ("broker_user", "nats_token", "nats_nkey_seed", "nats_credentials")
_MILLISECOND = timedelta(milliseconds=1)
_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number", timedelta: "a whole number of milliseconds"}
"""The types of settings that are numbers, and how an error message describes them."""


class Config(BaseSettings):
    """The settings of one instance. An empty variable counts as not set. The environment wins over `.env`."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_file=_FILE,
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",  # .env may have variables of other programs; see unknown_settings
        frozen=True,
    )

    broker_url: BrokerUrl = "nats://localhost:4222"
    broker_user: str | None = None
    broker_password: SecretStr | None = None
    broker_password_file: SecretFile | None = None
    nats_token: SecretStr | None = None
    nats_token_file: SecretFile | None = None
    nats_nkey_seed: SecretStr | None = None
    nats_nkey_seed_file: SecretFile | None = None
    nats_credentials: ReadableFile | None = None
    broker_tls_ca: ReadableFile | None = None
    broker_tls_cert: ReadableFile | None = None
    broker_tls_key: ReadableFile | None = None
    db_path: Path = Path("./event_service.db")
    database_url: DatabaseUrl | None = None
    database_url_file: DatabaseUrlFile | None = None
    database_statement_cache: int = Field(default=100, ge=0, le=10_000)
    polling_interval: Milliseconds = timedelta(milliseconds=5000)
    batch_size: int = Field(default=1000, ge=1, le=1000)  # JetStream's limit for an atomic batch
    visibility_timeout: Milliseconds = Field(
        default=timedelta(milliseconds=30000),
        ge=timedelta(seconds=10),  # a lease must last longer than publishing, which may take 5 s
    )
    max_attempts: int = Field(default=20, ge=1)
    retention_days: float = Field(default=7, gt=0, le=3650)
    role: Annotated[Literal["all", "handler", "worker"], InLowerCase] = "all"
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=9464, ge=0, le=65535)
    ui_enabled: bool | None = None  # None: only in `dev`
    subject_prefix: Subject = "timer"
    reply_prefix: str = "_INBOX."
    manage_streams: bool = True
    commands_from: Annotated[Literal["start", "now"], InLowerCase] = "start"
    commands_overlap: Milliseconds = timedelta(milliseconds=60000)
    cloudevents: bool = False
    signals_enabled: bool = True
    runs_enabled: bool = True
    schedules_enabled: bool = True
    workflows_enabled: bool = True
    auto_migrate: bool = True
    limits_file: LimitsFile | None = None
    memory_budget: ByteSize = Field(default=ByteSize(DEFAULT_MEMORY_BYTES), ge=LEAST_MEMORY_BYTES)
    shutdown_timeout: Milliseconds = timedelta(milliseconds=20000)
    log_level: Annotated[Literal["debug", "info", "warning", "error"], InLowerCase] = "info"
    log_format: Annotated[Literal["json", "console"], InLowerCase] | None = None

    @property
    def enabled(self) -> frozenset[str]:
        """The names of the enabled slices, among the slices that can be disabled."""
        return frozenset(name for name in _SWITCHED_SLICES if getattr(self, f"{name}_enabled"))

    @field_validator("reply_prefix")
    @classmethod
    def _reply_prefix(cls, value: str, info: ValidationInfo) -> str:
        """Reject a prefix that includes the service's own subjects: a client could have a reply sent to one of them."""
        if not value.endswith(".") or not is_subject(value[:-1]):
            raise PydanticCustomError("reply_prefix", "must be a subject that ends with a dot, such as _INBOX.")
        own = f"{info.data.get('subject_prefix', '')}."
        if value.startswith(own) or own.startswith(value):
            raise PydanticCustomError(
                "reply_prefix", "must not overlap with TIMER_SUBJECT_PREFIX; a right value is _INBOX."
            )
        return value

    @property
    def limits(self) -> TenantLimits:
        """The limits of the tenants."""
        return self.limits_file or DEFAULT_LIMITS

    @property
    def broker(self) -> str:
        """The broker of TIMER_BROKER_URL: `nats`, `redis` or `rabbitmq`."""
        return str(broker_of(self.broker_url.partition(",")[0]))

    @property
    def engine(self) -> str:
        """The database engine: `sqlite` or `postgres`."""
        return "postgres" if self._sources("database_url") else "sqlite"

    @property
    def postgres_url(self) -> str | None:
        """The URL of the PostgreSQL database; None if the database is the SQLite file. See `secret`."""
        return self.secret("database_url", read_database_url)

    def secret(self, field: str, read: Callable[[Path], str] = read_secret) -> str | None:
        """Return the secret of a field, from its variable or from its file, which is read at each call.

        Raises `StartError` with the name of the variable if the file cannot be read.
        """
        value: SecretStr | None = getattr(self, field)
        file: Path | None = getattr(self, f"{field}_file")
        if value is not None:
            return value.get_secret_value()
        try:
            return None if file is None else read(file)
        except PydanticCustomError as error:
            raise StartError(f"{_variable(f'{field}_file')}: {error.message()}") from error

    @model_validator(mode="after")
    def _one_source_of_each_secret(self) -> Self:
        """Reject a secret that is set both in a variable and in a file."""
        for field in ("database_url", "broker_password", "nats_token", "nats_nkey_seed"):
            if len(names := self._sources(field)) > 1:
                raise PydanticCustomError("secret", f"{' and '.join(names)} are both set: set only one of them")
        return self

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        """Reject an incomplete login, and more than one login: the driver would silently use one of them or none."""
        for one, other in (("broker_user", "broker_password"), ("broker_tls_cert", "broker_tls_key")):
            if self.broker == "redis" and one == "broker_user" and not self._sources(one):
                continue  # the user may be the default one
            if bool(self._sources(one)) != bool(self._sources(other)):
                raise PydanticCustomError(
                    "login", f"{_variable(one)} and {_variable(other)} go together: set both or neither"
                )
        logins = [name for field in _LOGINS for name in self._sources(field)]
        if any(urlsplit(url).username for url in self.broker_url.split(",")):
            logins.append("the user in TIMER_BROKER_URL")
        if len(logins) > 1:
            raise PydanticCustomError("login", f"{' and '.join(logins)} are different logins: set only one of them")
        return self

    def _sources(self, field: str) -> list[str]:
        """Return the variables that set a field: `TIMER_X`, `TIMER_X_FILE`, both, or none."""
        return [_variable(name) for name in (field, f"{field}_file") if getattr(self, name, None) is not None]


def load_config(**overrides: Any) -> Config:
    """Return the settings. `overrides`, by field name, replace them. Raises `StartError` with a line for each error."""
    if unknown := overrides.keys() - Config.model_fields.keys():
        raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}")
    try:
        return Config(**overrides)
    except ValidationError as error:
        # A misspelt name may be the reason why another setting is wrong.
        lines = [_describe_error(each) for each in error.errors(include_url=False, include_input=False)]
        raise StartError("\n".join([*lines, *unknown_settings(os.environ)])) from error
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"cannot read {_FILE}: {error}") from error


def unknown_settings(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each TIMER_* name in `environ` or `.env` that is not a setting, with the nearest setting.

    A warning never contains a value, which may be a secret.
    """
    known = [_variable(field) for field in Config.model_fields]
    names = {name.upper() for name in (*environ, *DotEnvSettingsSource(Config).env_vars)}
    warnings = []
    for name in sorted(names - set(known)):
        if name.startswith(_PREFIX) and not name.startswith(_NOT_SETTINGS):
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]}?" if near else ".env.example lists all settings"
            warnings.append(f"unknown setting {name}; {advice}")
    return warnings


def _describe_error(detail: ErrorDetails) -> str:
    """Return a line that names the setting and says what is wrong, without the value: a URL may contain a password."""
    if not detail["loc"]:  # a validator of several settings, whose message names them
        return detail["msg"]
    name = str(detail["loc"][0])
    field = Config.model_fields[name]
    if detail["type"] == "literal_error":
        reason = f"must be {detail['ctx']['expected']}".replace("'", "")
    elif field.annotation in {bool, bool | None}:
        reason = "must be true or false"
    elif field.annotation is ByteSize:
        reason = f"must be a size, at least {LEAST_MEMORY_BYTES // MIB}MiB, such as {DEFAULT_MEMORY_BYTES // MIB}MiB"
    elif field.annotation in _NUMBERS:
        reason = _describe_number(field)
    else:
        reason = detail["msg"]
    return f"{_variable(name)}: {reason}"


def _describe_number(field: FieldInfo) -> str:
    """Return which numbers a setting accepts: `must be a whole number, at least 1 and at most 1000, such as 500`."""
    bounds = []
    for name, words, strictest in (("gt", "more than", max), ("ge", "at least", max), ("le", "at most", min)):
        # The type of a setting can have a bound, and the setting another one.
        values = [getattr(each, name) for each in field.metadata if hasattr(each, name)]
        if values:
            bounds.append(f"{words} {_plain_number(strictest(values))}")
    return f"must be {_NUMBERS[field.annotation]}, {' and '.join(bounds)}, such as {_plain_number(field.default)}"


def _plain_number(value: Any) -> Any:
    """Return a duration as its number of milliseconds, and a number as it is."""
    return value // _MILLISECOND if isinstance(value, timedelta) else value


def _variable(field: str) -> str:
    """Return the name of the environment variable of a field."""
    return f"{_PREFIX}{field.upper()}"
