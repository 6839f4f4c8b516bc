import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from timer_service.config import Config, load_config, unknown_settings
from timer_service.core.values.errors import StartError

pytestmark = pytest.mark.usefixtures("folder")

EXAMPLE = Path(__file__).parents[2] / ".env.example"
CANNOT_BE_READ = "cannot be read ({}); give the path of a readable file, such as /run/secrets/timer"


def start_error(**overrides: object) -> str:
    with pytest.raises(StartError) as caught:
        load_config(**overrides)
    return str(caught.value)


def test_environment_wins_over_file_and_overrides_win_over_both(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overrides win over the environment, which wins over .env."""
    (folder / ".env").write_text("TIMER_BATCH_SIZE=1\nTIMER_MAX_ATTEMPTS=2\nTIMER_HTTP_PORT=3\n")
    monkeypatch.setenv("TIMER_MAX_ATTEMPTS", "20")
    monkeypatch.setenv("TIMER_HTTP_PORT", "30")
    config = load_config(http_port=300)
    assert (config.batch_size, config.max_attempts, config.http_port) == (1, 20, 300)


def test_empty_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable, such as Compose sets, leaves the default."""
    monkeypatch.setenv("TIMER_BATCH_SIZE", "")
    monkeypatch.setenv("TIMER_LOG_FORMAT", "")
    assert load_config() == Config()
    assert load_config().batch_size == 1000


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("BROKER_URL", "nats://a , tls://b:1", "nats://a,tls://b:1"),
        ("DATABASE_URL", "postgres://kim@host/timers?sslmode=require", None),
        ("SHUTDOWN_TIMEOUT", "86400000", timedelta(days=1)),
        ("ROLE", "Worker", "worker"),
        ("COMMANDS_FROM", "NOW", "now"),
        ("LOG_LEVEL", "DEBUG", "debug"),
        ("LOG_FORMAT", "JSON", "json"),
    ],
)
def test_forms_of_a_value(name: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words may be in upper case, URLs separated by spaces too, and a URL of PostgreSQL has either of two schemes."""
    monkeypatch.setenv(f"TIMER_{name}", text)
    config = load_config()
    assert (config.postgres_url if name == "DATABASE_URL" else getattr(config, name.lower())) == (value or text)


WRONG = {
    "BROKER_URL": (
        *("nats://", "kafka://localhost", "localhost:4222", "nats://a,", "nats://a:99999", "nats://:4222"),
        *("redis://a,redis://b", "nats://a,redis://b", "redis://"),
    ),
    "DATABASE_URL": ("percent-encoded", "mysql://h/d", "postgresql://h:0/d", "postgresql://h:99999/d"),
    "POLLING_INTERVAL": ("whole number of milliseconds", "5s", "0.5", "9" * 30),
    "SHUTDOWN_TIMEOUT": ("at least 1 and at most 86400000, such as 20000", "-1", "0", "86400001"),
    "VISIBILITY_TIMEOUT": ("at least 10000 and at most 86400000, such as 30000", "9999"),
    "BATCH_SIZE": ("a whole number, at least 1 and at most 1000, such as 1000", "1001", "0", "many", "9" * 5000),
    "MAX_ATTEMPTS": ("a whole number, at least 1, such as 20", "0"),
    "UI_ENABLED": ("true or false", "maybe"),
    "MANAGE_STREAMS": ("true or false", "maybe"),
    "MEMORY_BUDGET": ("a size, at least 128MiB, such as 256MiB", "127MiB", "256", "much"),
    "RETENTION_DAYS": ("a number, more than 0 and at most 3650, such as 7", "week", "0"),
    "HTTP_PORT": ("at least 0 and at most 65535, such as 9464", "65536"),
    "SUBJECT_PREFIX": ("joined by dots", "timer.", "timer.*", "täst"),
    "REPLY_PREFIX": ("ends with a dot", "_INBOX", "$JS.API."),
    "LOG_LEVEL": ("debug, info, warning or error", "loud"),
    "LOG_FORMAT": ("json or console", "xml"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (_, *values) in WRONG.items() for value in values])
def test_wrong_value_is_rejected(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value is rejected with one line: the variable, what its value must be, and an example."""
    monkeypatch.setenv(f"TIMER_{name}", value)
    line = start_error()
    assert line.startswith(f"TIMER_{name}: must ")
    assert WRONG[name][0] in line
    assert not re.search("Input|timedelta|pydantic|\n", line), "in our own words"


@pytest.mark.parametrize("reply_prefix", ["acme.", "acme.timer.", "acme.timer.cmd.v1."])
def test_reply_prefix_that_overlaps(reply_prefix: str) -> None:
    """A reply prefix with subjects of the service is rejected: a client could have a reply sent to one of them."""
    error = start_error(subject_prefix="acme.timer", reply_prefix=reply_prefix)
    assert error == "TIMER_REPLY_PREFIX: must not overlap with TIMER_SUBJECT_PREFIX; a right value is _INBOX."


def test_a_line_per_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wrong setting is reported, one per line, wherever it was set."""
    monkeypatch.setenv("TIMER_BATCH_SIZE", "many")
    lines = start_error(http_port=-1).splitlines()
    assert [line.split(":")[0] for line in lines] == ["TIMER_BATCH_SIZE", "TIMER_HTTP_PORT"]


def test_secret_from_a_file(folder: Path) -> None:
    """A secret is read from a file without its final line break, again at each use. Printing a config does not show it.

    If the file cannot be read any more, the error names the setting and the reason.
    """
    (folder / "secret").write_text("s3cret".ljust(1024 * 1024, "\n"))  # the largest file that is read
    config = load_config(nats_token_file=folder / "secret")
    assert config.secret("nats_token") == "s3cret"
    assert "s3cret" not in f"{config!r} {config}"
    (folder / "secret").write_text("another")
    assert config.secret("nats_token") == "another"
    (folder / "secret").write_text("")
    with pytest.raises(StartError, match="TIMER_NATS_TOKEN_FILE: names an empty file; write the secret into it"):
        config.secret("nats_token")
    (folder / "url").write_text("postgresql://kim@host/timers")
    config = load_config(database_url_file=folder / "url")
    assert (config.engine, config.postgres_url) == ("postgres", "postgresql://kim@host/timers")
    (folder / "url").write_text("mysql://kim:s3cret@host/timers")
    with pytest.raises(StartError, match=r"^TIMER_DATABASE_URL_FILE: must be postgresql://[^3]*$"):
        _ = config.postgres_url


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({name: "full"}, "_USER and TIMER_BROKER_PASSWORD go together: set") for name in ("USER", "PASSWORD_FILE")),
        *(({name: "full"}, "_TLS_CERT and TIMER_BROKER_TLS_KEY go together") for name in ("TLS_CERT", "TLS_KEY")),
        (
            {"USER": "u", "PASSWORD": "p", "PASSWORD_FILE": "full"},
            "_PASSWORD and TIMER_BROKER_PASSWORD_FILE are both",
        ),
        ({"USER": "u", "PASSWORD": "p", "TOKEN": "t"}, "_USER and TIMER_NATS_TOKEN are different logins: set only one"),
        ({"NKEY_SEED_FILE": "full", "CREDENTIALS": "full"}, "_NKEY_SEED_FILE and TIMER_NATS_CREDENTIALS are different"),
        ({"TOKEN_FILE": "none"}, f"_TOKEN_FILE: {CANNOT_BE_READ.format('No such file or directory')}"),
        ({"TOKEN_FILE": "empty"}, "_TOKEN_FILE: names an empty file; write the secret into it"),
        ({"TOKEN_FILE": "binary"}, "_TOKEN_FILE: names a file that is not UTF-8 text; write the secret as text"),
        ({"CREDENTIALS": "none"}, f"_CREDENTIALS: {CANNOT_BE_READ.format('No such file or directory')}"),
    ],
)
def test_wrong_login(settings: dict[str, str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete login, several logins or an unreadable file is rejected, and the error names the variables."""
    for name, content in {"full": b"x", "empty": b"\n", "binary": b"\xff"}.items():
        (folder / name).write_bytes(content)
    for name, value in settings.items():
        of = "NATS" if name.startswith(("TOKEN", "NKEY", "CREDENTIALS")) else "BROKER"
        monkeypatch.setenv(f"TIMER_{of}_{name}", value)
    assert start_error().startswith((f"TIMER_NATS{message}", f"TIMER_BROKER{message}"))


def test_two_sources_of_a_secret(folder: Path) -> None:
    """A login beside one in the URL of the broker, and two URLs of the database, are rejected."""
    error = start_error(broker_url="nats://a,nats://kim:s3cret@b", nats_token="t")
    assert error == "TIMER_NATS_TOKEN and the user in TIMER_BROKER_URL are different logins: set only one of them"
    (folder / "url").write_text("postgresql://kim@host/timers")
    error = start_error(database_url="postgresql://kim@host/timers", database_url_file=folder / "url")
    assert error == "TIMER_DATABASE_URL and TIMER_DATABASE_URL_FILE are both set: set only one of them"


def wrong_files(folder: Path, most_mib: int) -> Iterator[tuple[Path, str]]:
    """Return paths that name no small readable file, each with the reason in the error."""
    os.mkfifo(folder / "fifo")
    (folder / "large").touch()
    os.truncate(folder / "large", most_mib * 1024 * 1024 + 1)
    yield folder / "fifo", "it is not a regular file"
    yield folder, "it is not a regular file"
    yield Path("/dev/zero"), "it is not a regular file"
    yield folder / "large", f"it has more than {most_mib} MiB"
    yield Path("/proc/self/mem"), "Input/output error"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "most_mib"), [("LIMITS_FILE", 16), ("NATS_TOKEN_FILE", 1), ("BROKER_TLS_CA", 1), ("DATABASE_URL_FILE", 1)]
)
def test_no_small_readable_file(name: str, most_mib: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, a folder, a device, a large or an unreadable file is an error at once, with the setting and the path."""
    for path, reason in wrong_files(folder, most_mib):
        monkeypatch.setenv(f"TIMER_{name}", str(path))
        assert start_error() == f"TIMER_{name}: {path} {CANNOT_BE_READ.format(reason)}"


def test_secret_in_place_of_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is set in place of the path of its file is not quoted."""
    for secret in ("s3cret", "s3cret" * 100):
        monkeypatch.setenv("TIMER_NATS_TOKEN_FILE", secret)
        assert "s3cret" not in start_error()


def test_unreadable_file(folder: Path) -> None:
    """A .env that is not UTF-8 is rejected, and the error names the file."""
    (folder / ".env").write_bytes(b"TIMER_BATCH_SIZE=\xff\n")
    assert start_error().startswith("cannot read .env: ")


def test_unknown_settings(folder: Path) -> None:
    """An unknown name in the environment or in .env gives a warning with the nearest setting. Other names give none."""
    (folder / ".env").write_text("TIMER_POLING_INTERVAL=1\nDATABASE=x\n")
    others = ("TIMER_BATCH_SIZE", "TIMER_SERVICE_SERVICE_HOST", "TIMER_TEST_NATS_URL", "timer_max_attempts", "PATH")
    assert unknown_settings(dict.fromkeys(("TIMER_BATCHSIZE", "TIMER_ZZZZZZZZZZZZ", *others), "1")) == [
        "unknown setting TIMER_BATCHSIZE; did you mean TIMER_BATCH_SIZE?",
        "unknown setting TIMER_POLING_INTERVAL; did you mean TIMER_POLLING_INTERVAL?",
        "unknown setting TIMER_ZZZZZZZZZZZZ; .env.example lists all settings",
    ]


def test_misspelt_setting_beside_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error for a wrong setting also names misspelt settings, which may be its cause."""
    monkeypatch.setenv("TIMER_BROKER_USER", "me")
    monkeypatch.setenv("TIMER_BROKER_PASWORD", "s3cret")
    assert start_error().splitlines() == [
        "TIMER_BROKER_USER and TIMER_BROKER_PASSWORD go together: set both or neither",
        "unknown setting TIMER_BROKER_PASWORD; did you mean TIMER_BROKER_PASSWORD?",
    ]


def test_example_lists_every_setting(folder: Path) -> None:
    """.env.example has every setting, in order, with its default and an explanation above it."""
    entries = re.findall(r"^# (?!TIMER_)\S.*\n# TIMER_(\w+)=(.*)$", EXAMPLE.read_text("utf-8"), re.MULTILINE)
    assert [name.lower() for name, _ in entries] == list(Config.model_fields)
    assert [name.lower() for name, value in entries if not value] == [
        name for name, field in Config.model_fields.items() if field.default is None
    ]
    (folder / ".env").write_text("".join(f"TIMER_{name}={value}\n" for name, value in entries))
    assert load_config().model_dump() == {name: field.default for name, field in Config.model_fields.items()}


@pytest.mark.parametrize("password", ["s3/cret", "3/cret", "3?cret", "3?c=r&et", "3#cret", "s#cret"])
def test_database_url_with_a_raw_password(password: str) -> None:
    """A password that is not percent-encoded is rejected, and the error contains no part of it."""
    message = start_error(database_url=f"postgresql://user:{password}@host/database")
    assert "percent-encoded" in message
    assert "cret" not in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[default", "is not TOML"),
        ("[default]\npending_timer = 1", "default.pending_timer: is not a known field"),
        ("[default]\npending_timers = '5'", "default.pending_timers: must be a valid integer"),
        ("[default]\npending_timers = 9223372036854775807", "default.pending_timers: must be less than or equal to 10"),
        ("[tenants.acme]\ncommands_per_second = 5", "tenants.acme.commands_per_second: is not a known field"),
        ("[tenants.'a b']\nopen_runs = 1", "tenants.a b"),
        ("[tenant.acme]", "tenant: is not a known field"),
        (f"a = {'[' * 100_000}", "is not TOML: it is nested too deeply"),
    ],
)
def test_wrong_limits(text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the setting, the file, and the limit."""
    path = tmp_path / "limits.toml"
    path.write_text(text)
    monkeypatch.setenv("TIMER_LIMITS_FILE", str(path))
    error = start_error()
    assert error.startswith(f"TIMER_LIMITS_FILE: {path}")
    assert reason in error


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant without a section has the limits of `default`; what has no limit there has none."""
    path = tmp_path / "limits.toml"
    path.write_text('[default]\npending_timers = 5\nstored_data = "2MiB"\n[tenants.acme]\nopen_runs = 7\n')
    monkeypatch.setenv("TIMER_LIMITS_FILE", str(path))
    limits = load_config().limits
    assert (limits.of("globex").pending_timers, limits.of("globex").stored_data) == (5, 2 * 1024 * 1024)
    assert (limits.of("acme").open_runs, limits.of("acme").pending_timers) == (7, None)
