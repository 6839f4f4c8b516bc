import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

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


def test_frozen() -> None:
    """A config cannot be changed after it is read."""
    with pytest.raises(ValidationError, match="frozen"):
        load_config().batch_size = 1  # type: ignore[misc]


def test_environment_wins_over_file_and_overrides_win_over_both(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overrides win over the environment, which wins over .env."""
    (folder / ".env").write_text("TIMER_BATCH_SIZE=1\nTIMER_MAX_ATTEMPTS=2\nTIMER_HTTP_PORT=3\n")
    monkeypatch.setenv("TIMER_MAX_ATTEMPTS", "20")
    monkeypatch.setenv("TIMER_HTTP_PORT", "30")
    config = load_config(http_port=300)
    assert (config.batch_size, config.max_attempts, config.http_port) == (1, 20, 300)


def test_durations_are_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A duration is a whole number of milliseconds in the environment and a timedelta in Python."""
    monkeypatch.setenv("TIMER_POLLING_INTERVAL", "1500")
    config = load_config(shutdown_timeout=timedelta(seconds=3))
    assert config.polling_interval == timedelta(seconds=1.5)
    assert config.shutdown_timeout == timedelta(seconds=3)


def test_empty_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable, such as Compose sets, leaves the default."""
    monkeypatch.setenv("TIMER_BATCH_SIZE", "")
    monkeypatch.setenv("TIMER_LOG_FORMAT", "")
    assert load_config() == Config()
    assert load_config().batch_size == 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("broker_url", "nats://a:4222, tls://user:secret@b"),
        ("broker_url", "nats://[::1]:4222"),
        ("subject_prefix", "acme.timer-1"),
        ("reply_prefix", "_INBOX.acme."),
        ("log_level", "WARNING"),
        ("log_format", "console"),
        ("batch_size", "1"),
        ("http_port", "0"),
        ("visibility_timeout", "10000"),
        ("memory_budget", "128MiB"),
        ("memory_budget", "1073741824"),
    ],
)
def test_edge_values_are_accepted(field: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values at the edge of the allowed range are accepted."""
    monkeypatch.setenv(f"TIMER_{field.upper()}", value)
    accepted = getattr(load_config(), field)
    assert accepted != Config.model_fields[field].default


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


def test_reply_prefix_above_the_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply prefix that includes the service's own subjects is rejected."""
    monkeypatch.setenv("TIMER_SUBJECT_PREFIX", "acme.timer")
    monkeypatch.setenv("TIMER_REPLY_PREFIX", "acme.")
    assert start_error() == "TIMER_REPLY_PREFIX: must not overlap with TIMER_SUBJECT_PREFIX; a right value is _INBOX."


def test_a_line_per_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wrong setting is reported, one per line, wherever it was set."""
    monkeypatch.setenv("TIMER_BATCH_SIZE", "many")
    lines = start_error(http_port=-1).splitlines()
    assert [line.split(":")[0] for line in lines] == ["TIMER_BATCH_SIZE", "TIMER_HTTP_PORT"]


def test_errors_do_not_contain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error never contains the value, which may be a password."""
    monkeypatch.setenv("TIMER_BROKER_URL", "http://user:secret@host")
    assert "secret" not in start_error()


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


def test_user_in_the_url_is_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user in the broker's URL and another login are rejected together."""
    monkeypatch.setenv("TIMER_BROKER_URL", "nats://me:secret@host")
    monkeypatch.setenv("TIMER_NATS_TOKEN", "secret")
    message = "TIMER_NATS_TOKEN and the user in TIMER_BROKER_URL are different logins: set only one of them"
    assert start_error() == message


def test_unreadable_file(folder: Path) -> None:
    """A .env that is not UTF-8 is rejected, and the error names the file."""
    (folder / ".env").write_bytes(b"TIMER_BATCH_SIZE=\xff\n")
    assert start_error().startswith("cannot read .env: ")


def test_unknown_override() -> None:
    """A misspelt override raises an error, because it is a bug of the program."""
    with pytest.raises(TypeError, match="batchsize"):
        load_config(batchsize=1)


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


@pytest.mark.parametrize("line", ["TIMER_DBPATH=s3cret", "export TIMER_DBPATH = 's3cret'", "timer_dbpath=s3cret"])
def test_misspelt_setting_in_the_file(line: str, folder: Path) -> None:
    """A misspelt setting in .env gives the same warning as in the environment, without its value."""
    (folder / ".env").write_text(f"{line}\n")
    warnings = unknown_settings({})
    assert warnings == ["unknown setting TIMER_DBPATH; did you mean TIMER_DB_PATH?"]
    assert warnings == unknown_settings({"TIMER_DBPATH": "s3cret"})


def test_misspelt_setting_beside_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error for a wrong setting also names misspelt settings, which may be its cause."""
    monkeypatch.setenv("TIMER_NATS_USER", "me")
    monkeypatch.setenv("TIMER_NATS_PASWORD", "s3cret")
    assert start_error().splitlines() == [
        "TIMER_NATS_USER and TIMER_NATS_PASSWORD go together: set both or neither",
        "unknown setting TIMER_NATS_PASWORD; did you mean TIMER_NATS_PASSWORD?",
    ]


def test_unknown_settings_do_not_stop_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown setting is not an error, in the environment or in .env."""
    (folder / ".env").write_text("TIMER_BATCHSIZE=1\n")
    monkeypatch.setenv("TIMER_SERVICE_PORT", "tcp://10.0.0.1:80")
    assert load_config().batch_size == 1000


def test_example_lists_every_setting(folder: Path) -> None:
    """.env.example has every setting, in order, with its default and an explanation above it."""
    entries = re.findall(r"^# (?!TIMER_)\S.*\n# TIMER_(\w+)=(.*)$", EXAMPLE.read_text("utf-8"), re.MULTILINE)
    assert [name.lower() for name, _ in entries] == list(Config.model_fields)
    assert [name.lower() for name, value in entries if not value] == [
        name for name, field in Config.model_fields.items() if field.default is None
    ]
    (folder / ".env").write_text("".join(f"TIMER_{name}={value}\n" for name, value in entries))
    assert load_config().model_dump() == {name: field.default for name, field in Config.model_fields.items()}


def test_unchanged_example(folder: Path) -> None:
    """A copy of .env.example as .env changes no setting and gives no warning."""
    defaults = load_config()
    (folder / ".env").write_bytes(EXAMPLE.read_bytes())
    assert load_config() == defaults
    assert unknown_settings({}) == []


@pytest.mark.parametrize("password", ["s3/cret", "3/cret", "3?cret", "3?c=r&et", "3#cret", "s#cret"])
def test_database_url_with_a_raw_password(password: str) -> None:
    """A password that is not percent-encoded is rejected, and the error contains no part of it."""
    message = start_error(database_url=f"postgresql://user:{password}@host/database")
    assert "percent-encoded" in message
    assert "cret" not in message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3%2Fcret@host:5432/database",
        "postgres://user@/database?host=a,b&port=5432,5433&target_session_attrs=read-write",
        "postgresql://host",
    ],
)
def test_database_url(url: str) -> None:
    """A database URL may name one server or several."""
    config = load_config(database_url=url)
    assert (config.engine, config.postgres_url) == ("postgres", url)


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


def test_limits_file_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read is an error."""
    monkeypatch.setenv("TIMER_LIMITS_FILE", "/nowhere/limits.toml")
    with pytest.raises(StartError, match=r"TIMER_LIMITS_FILE: cannot be read \(No such file or directory\)"):
        load_config()
