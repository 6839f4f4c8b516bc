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


def test_defaults() -> None:
    """Every setting has a default, and the defaults are the documented ones."""
    config = load_config()
    assert config.broker_url == "nats://localhost:4222"
    assert config.db_path == Path("event_service.db")
    assert config.batch_size == 1000
    assert config.polling_interval == timedelta(seconds=5)
    assert config.visibility_timeout == timedelta(seconds=30)
    assert config.shutdown_timeout == timedelta(seconds=20)
    assert (config.http_host, config.http_port) == ("127.0.0.1", 9464)
    assert config.log_format is None


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
    ("name", "value", "reason"),
    [
        ("TIMER_BROKER_URL", "amqp://localhost", "must be nats://"),
        ("TIMER_BROKER_URL", "localhost:4222", "must be nats://"),
        ("TIMER_BROKER_URL", "nats://a,", "must be nats://"),
        ("TIMER_BROKER_URL", "nats://a:99999", "must be nats://"),
        ("TIMER_BROKER_URL", "nats://:4222", "must be nats://"),
        ("TIMER_POLLING_INTERVAL", "5s", "whole number of milliseconds"),
        ("TIMER_POLLING_INTERVAL", "0.5", "whole number of milliseconds"),
        ("TIMER_POLLING_INTERVAL", "9" * 30, "whole number of milliseconds"),
        ("TIMER_POLLING_INTERVAL", "0", "at least 1 and at most 86400000, such as 5000"),
        ("TIMER_SHUTDOWN_TIMEOUT", "-1", "at least 1 and at most 86400000, such as 20000"),
        ("TIMER_SHUTDOWN_TIMEOUT", "86400001", "at least 1 and at most 86400000, such as 20000"),
        ("TIMER_VISIBILITY_TIMEOUT", "9999", "at least 10000 and at most 86400000, such as 30000"),
        ("TIMER_BATCH_SIZE", "1001", "must be a whole number, at least 1 and at most 1000, such as 1000"),
        ("TIMER_BATCH_SIZE", "0", "at least 1 and at most 1000"),
        ("TIMER_BATCH_SIZE", "many", "must be a whole number, at least 1 and at most 1000, such as 1000"),
        ("TIMER_BATCH_SIZE", "9" * 5000, "must be a whole number, at least 1 and at most 1000, such as 1000"),
        ("TIMER_MAX_ATTEMPTS", "0", "must be a whole number, at least 1, such as 20"),
        ("TIMER_UI_ENABLED", "maybe", "must be true or false"),
        ("TIMER_MEMORY_BUDGET", "127MiB", "must be a size, at least 128MiB, such as 256MiB"),
        ("TIMER_MEMORY_BUDGET", "256", "must be a size, at least 128MiB, such as 256MiB"),
        ("TIMER_MEMORY_BUDGET", "much", "must be a size, at least 128MiB, such as 256MiB"),
        ("TIMER_RETENTION_DAYS", "week", "must be a number, more than 0 and at most 3650, such as 7"),
        ("TIMER_HTTP_PORT", "65536", "at least 0 and at most 65535, such as 9464"),
        ("TIMER_SUBJECT_PREFIX", "timer.", "joined by dots"),
        ("TIMER_SUBJECT_PREFIX", "timer.*", "joined by dots"),
        ("TIMER_SUBJECT_PREFIX", "täst", "joined by dots"),
        ("TIMER_REPLY_PREFIX", "_INBOX", "ends with a dot"),
        ("TIMER_REPLY_PREFIX", "$JS.API.", "ends with a dot"),
        ("TIMER_REPLY_PREFIX", "timer.", "not overlap with TIMER_SUBJECT_PREFIX"),
        ("TIMER_REPLY_PREFIX", "timer.cmd.v1.", "not overlap with TIMER_SUBJECT_PREFIX"),
        ("TIMER_MANAGE_STREAMS", "maybe", "must be true or false"),
        ("TIMER_LOG_LEVEL", "loud", "must be debug, info, warning or error"),
        ("TIMER_LOG_FORMAT", "xml", "must be json or console"),
    ],
)
def test_wrong_value_is_rejected(name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value is rejected with one line: the variable, what its value must be, and an example."""
    monkeypatch.setenv(name, value)
    line = start_error()
    assert line.startswith(f"{name}: must ")
    assert reason in line
    assert "\n" not in line
    assert not re.search("Input|timedelta|pydantic", line), "in our own words"


def test_a_line_per_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wrong setting is reported, one per line, wherever it was set."""
    monkeypatch.setenv("TIMER_BATCH_SIZE", "many")
    lines = start_error(http_port=-1).splitlines()
    assert [line.split(":")[0] for line in lines] == ["TIMER_BATCH_SIZE", "TIMER_HTTP_PORT"]


@pytest.mark.parametrize("secret", ["nats_password", "nats_token", "nats_nkey_seed"])
def test_secret_from_a_file(secret: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret is read from a file without its final line break, and printing a config does not show it."""
    (folder / "secret").write_text("s3cret\n")
    monkeypatch.setenv(f"TIMER_{secret.upper()}_FILE", str(folder / "secret"))
    config = load_config(**({"nats_user": "me"} if secret == "nats_password" else {}))
    assert getattr(config, f"{secret}_file").get_secret_value() == "s3cret"
    assert "s3cret" not in f"{config!r} {config}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"PASSWORD": "p"}, "TIMER_NATS_USER and TIMER_NATS_PASSWORD go together: set both or neither"),
        ({"PASSWORD_FILE": "full"}, "TIMER_NATS_USER and TIMER_NATS_PASSWORD go together: set both or neither"),
        ({"USER": "u"}, "TIMER_NATS_USER and TIMER_NATS_PASSWORD go together: set both or neither"),
        ({"TLS_CERT": "full"}, "TIMER_NATS_TLS_CERT and TIMER_NATS_TLS_KEY go together: set both or neither"),
        ({"TLS_KEY": "full"}, "TIMER_NATS_TLS_CERT and TIMER_NATS_TLS_KEY go together: set both or neither"),
        (
            {"USER": "u", "PASSWORD": "p", "PASSWORD_FILE": "full"},
            "TIMER_NATS_PASSWORD and TIMER_NATS_PASSWORD_FILE are both set: set only one of them",
        ),
        (
            {"USER": "u", "PASSWORD": "p", "TOKEN": "t"},
            "TIMER_NATS_USER and TIMER_NATS_TOKEN are different logins: set only one of them",
        ),
        (
            {"NKEY_SEED_FILE": "full", "CREDENTIALS": "full"},
            "TIMER_NATS_NKEY_SEED_FILE and TIMER_NATS_CREDENTIALS are different logins: set only one of them",
        ),
        ({"TOKEN_FILE": "none"}, f"TIMER_NATS_TOKEN_FILE: {CANNOT_BE_READ.format('No such file or directory')}"),
        ({"TOKEN_FILE": "empty"}, "TIMER_NATS_TOKEN_FILE: names an empty file; write the secret into it"),
        (
            {"TOKEN_FILE": "binary"},
            "TIMER_NATS_TOKEN_FILE: names a file that is not UTF-8 text; write the secret as text",
        ),
        ({"CREDENTIALS": "none"}, f"TIMER_NATS_CREDENTIALS: {CANNOT_BE_READ.format('No such file or directory')}"),
        ({"TLS_CA": "."}, f"TIMER_NATS_TLS_CA: . {CANNOT_BE_READ.format('it is not a regular file')}"),
    ],
)
def test_wrong_login(settings: dict[str, str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete login, several logins or an unreadable file is rejected, and the error names the variables."""
    for name, content in {"full": b"x", "empty": b"\n", "binary": b"\xff"}.items():
        (folder / name).write_bytes(content)
    for name, value in settings.items():
        monkeypatch.setenv(f"TIMER_NATS_{name}", value)
    assert start_error() == message


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
    ("name", "most_mib"),
    [
        ("LIMITS_FILE", 16),
        ("NATS_PASSWORD_FILE", 1),
        ("NATS_TOKEN_FILE", 1),
        ("NATS_NKEY_SEED_FILE", 1),
        ("NATS_CREDENTIALS", 1),
        ("NATS_TLS_CA", 1),
        ("DATABASE_URL_FILE", 1),
    ],
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
    environ = {
        "TIMER_BATCHSIZE": "1",
        "TIMER_BATCH_SIZE": "1",
        "TIMER_ZZZZZZZZZZZZ": "1",
        "TIMER_SERVICE_SERVICE_HOST": "10.0.0.1",
        "TIMER_TEST_NATS_URL": "nats://localhost",
        "timer_max_attempts": "1",
        "PATH": "/bin",
    }
    assert unknown_settings(environ) == [
        "unknown setting TIMER_BATCHSIZE; did you mean TIMER_BATCH_SIZE?",
        "unknown setting TIMER_POLING_INTERVAL; did you mean TIMER_POLLING_INTERVAL?",
        "unknown setting TIMER_ZZZZZZZZZZZZ; .env.example lists all settings",
    ]


def test_misspelt_setting_beside_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error for a wrong setting also names misspelt settings, which may be its cause."""
    monkeypatch.setenv("TIMER_NATS_USER", "me")
    monkeypatch.setenv("TIMER_NATS_PASWORD", "s3cret")
    assert start_error().splitlines() == [
        "TIMER_NATS_USER and TIMER_NATS_PASSWORD go together: set both or neither",
        "unknown setting TIMER_NATS_PASWORD; did you mean TIMER_NATS_PASSWORD?",
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
        ("[default]\npending_timers = -1", "default.pending_timers: must be greater than or equal to 0"),
        ("[default]\npending_timers = true", "default.pending_timers: must be a valid integer"),
        ("[default]\npending_timers = '5'", "default.pending_timers: must be a valid integer"),
        ("[default]\npending_timers = 9223372036854775807", "default.pending_timers: must be less than or equal to 10"),
        ("[default]\nstored_data = true", "default.stored_data: must be a whole number, or a text such as '1GiB'"),
        ("[default]\nstored_data = inf", "default.stored_data: must be a whole number, or a text such as '1GiB'"),
        ("[default]\nstored_data = '8EiB'", "default.stored_data: must be less than or equal to 10"),
        ("[default]\nstored_data = -1", "default.stored_data: must be a whole number, or a text such as '1GiB'"),
        ("[tenants.acme]\ncommands_per_second = 5", "tenants.acme.commands_per_second: is not a known field"),
        ("[tenants.'a b']\nopen_runs = 1", "tenants.a b"),
        ("[tenant.acme]", "tenant: is not a known field"),
        ("[tenants]\nacme = 5", "tenants.acme: must be"),
        (f"a = {'[' * 100_000}", "is not TOML: it is nested too deeply"),
        (f"[default]\npending_timers = {'9' * 5000}", "is not TOML: "),
    ],
)
def test_wrong_limits(text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the setting, the file, and the limit."""
    path = tmp_path / "limits.toml"
    path.write_text(text)
    monkeypatch.setenv("TIMER_LIMITS_FILE", str(path))
    with pytest.raises(StartError) as caught:
        load_config()
    assert str(caught.value).startswith(f"TIMER_LIMITS_FILE: {path}")
    assert reason in str(caught.value)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant without a section has the limits of `default`; what has no limit there has none."""
    path = tmp_path / "limits.toml"
    path.write_text('[default]\npending_timers = 5\nstored_data = "2MiB"\n[tenants.acme]\nopen_runs = 7\n')
    monkeypatch.setenv("TIMER_LIMITS_FILE", str(path))
    limits = load_config().limits
    assert (limits.of("globex").pending_timers, limits.of("globex").stored_data) == (5, 2 * 1024 * 1024)
    assert (limits.of("acme").open_runs, limits.of("acme").pending_timers) == (7, None)
