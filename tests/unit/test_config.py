import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from timer_service.config import Config, load_config, unknown_settings
from timer_service.core.errors import StartError

EXAMPLE = Path(__file__).parents[2] / ".env.example"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.upper().startswith("TIMER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(**overrides: object) -> str:
    with pytest.raises(StartError) as caught:
        load_config(**overrides)
    return str(caught.value)


def test_defaults() -> None:
    """Nothing needs to be set, and the defaults are the documented ones."""
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
    """A config never changes after it was read."""
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
    """An empty variable, as Compose passes one on, leaves the default."""
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
    ],
)
def test_accepted(field: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values at the edge of what is allowed are taken."""
    monkeypatch.setenv(f"TIMER_{field.upper()}", value)
    taken = getattr(load_config(), field)
    assert taken != Config.model_fields[field].default


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
        ("TIMER_POLLING_INTERVAL", "0", "greater than or equal to"),
        ("TIMER_SHUTDOWN_TIMEOUT", "-1", "greater than or equal to"),
        ("TIMER_SHUTDOWN_TIMEOUT", "86400001", "less than or equal to"),
        ("TIMER_VISIBILITY_TIMEOUT", "9999", "greater than or equal to 10 seconds"),
        ("TIMER_BATCH_SIZE", "1001", "less than or equal to 1000"),
        ("TIMER_BATCH_SIZE", "0", "greater than or equal to 1"),
        ("TIMER_MAX_ATTEMPTS", "0", "greater than or equal to 1"),
        ("TIMER_HTTP_PORT", "65536", "less than or equal to 65535"),
        ("TIMER_SUBJECT_PREFIX", "timer.", "joined by dots"),
        ("TIMER_SUBJECT_PREFIX", "timer.*", "joined by dots"),
        ("TIMER_SUBJECT_PREFIX", "täst", "joined by dots"),
        ("TIMER_REPLY_PREFIX", "_INBOX", "ends with a dot"),
        ("TIMER_REPLY_PREFIX", "$JS.API.", "ends with a dot"),
        ("TIMER_REPLY_PREFIX", "timer.", "apart from TIMER_SUBJECT_PREFIX"),
        ("TIMER_REPLY_PREFIX", "timer.cmd.v1.", "apart from TIMER_SUBJECT_PREFIX"),
        ("TIMER_MANAGE_STREAMS", "maybe", "boolean"),
        ("TIMER_LOG_LEVEL", "loud", "'debug'"),
        ("TIMER_LOG_FORMAT", "xml", "'json' or 'console'"),
    ],
)
def test_refused(name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value is refused in one line that names its variable and what it must be."""
    monkeypatch.setenv(name, value)
    line = complaint()
    assert line.startswith(f"{name}: ")
    assert reason in line
    assert "\n" not in line


def test_reply_prefix_above_the_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply prefix that covers the service's own subjects is refused too."""
    monkeypatch.setenv("TIMER_SUBJECT_PREFIX", "acme.timer")
    monkeypatch.setenv("TIMER_REPLY_PREFIX", "acme.")
    assert complaint() == "TIMER_REPLY_PREFIX: must lie apart from TIMER_SUBJECT_PREFIX"


def test_a_line_per_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is wrong is told at once, a line each, wherever it was set."""
    monkeypatch.setenv("TIMER_BATCH_SIZE", "many")
    lines = complaint(http_port=-1).splitlines()
    assert [line.split(":")[0] for line in lines] == ["TIMER_BATCH_SIZE", "TIMER_HTTP_PORT"]


def test_values_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A complaint never repeats the value, which may hold a password."""
    monkeypatch.setenv("TIMER_BROKER_URL", "http://user:secret@host")
    assert "secret" not in complaint()


@pytest.mark.parametrize("secret", ["nats_password", "nats_token", "nats_nkey_seed"])
def test_secrets_may_lie_in_files(secret: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret may be given as a file, without the line break at its end; no way of printing a config shows it."""
    (folder / "secret").write_text("s3cret\n")
    monkeypatch.setenv(f"TIMER_{secret.upper()}_FILE", str(folder / "secret"))
    config = load_config(**({"nats_user": "me"} if secret == "nats_password" else {}))
    assert getattr(config, f"{secret}_file").get_secret_value() == "s3cret"
    assert "s3cret" not in f"{config!r} {config}"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"PASSWORD": "p"}, "TIMER_NATS_USER and TIMER_NATS_PASSWORD go together"),
        ({"PASSWORD_FILE": "full"}, "TIMER_NATS_USER and TIMER_NATS_PASSWORD go together"),
        ({"USER": "u"}, "TIMER_NATS_USER and TIMER_NATS_PASSWORD go together"),
        ({"TLS_CERT": "full"}, "TIMER_NATS_TLS_CERT and TIMER_NATS_TLS_KEY go together"),
        ({"TLS_KEY": "full"}, "TIMER_NATS_TLS_CERT and TIMER_NATS_TLS_KEY go together"),
        (
            {"USER": "u", "PASSWORD": "p", "PASSWORD_FILE": "full"},
            "TIMER_NATS_PASSWORD and TIMER_NATS_PASSWORD_FILE: give only one of them",
        ),
        (
            {"USER": "u", "PASSWORD": "p", "TOKEN": "t"},
            "TIMER_NATS_USER and TIMER_NATS_TOKEN: more than one way to authenticate",
        ),
        (
            {"NKEY_SEED_FILE": "full", "CREDENTIALS": "full"},
            "TIMER_NATS_NKEY_SEED_FILE and TIMER_NATS_CREDENTIALS: more than one way to authenticate",
        ),
        ({"TOKEN_FILE": "none"}, "TIMER_NATS_TOKEN_FILE: can't be read: No such file or directory"),
        ({"TOKEN_FILE": "empty"}, "TIMER_NATS_TOKEN_FILE: is an empty file"),
        ({"TOKEN_FILE": "binary"}, "TIMER_NATS_TOKEN_FILE: is not text in UTF-8"),
        ({"CREDENTIALS": "none"}, "TIMER_NATS_CREDENTIALS: can't be read: No such file or directory"),
        ({"TLS_CA": "."}, "TIMER_NATS_TLS_CA: can't be read: Is a directory"),
    ],
)
def test_half_a_login(settings: dict[str, str], told: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a login, more than one, or a file that isn't there is refused, naming the variables."""
    for name, content in {"full": b"x", "empty": b"\n", "binary": b"\xff"}.items():
        (folder / name).write_bytes(content)
    for name, value in settings.items():
        monkeypatch.setenv(f"TIMER_NATS_{name}", value)
    assert complaint() == told


def test_user_in_the_url_is_a_login_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user in the broker's URL beside another login is refused."""
    monkeypatch.setenv("TIMER_BROKER_URL", "nats://me:secret@host")
    monkeypatch.setenv("TIMER_NATS_TOKEN", "secret")
    told = complaint()
    assert told == "TIMER_NATS_TOKEN and the user in TIMER_BROKER_URL: more than one way to authenticate"


def test_unreadable_file(folder: Path) -> None:
    """A .env that is not UTF-8 is named as what is wrong."""
    (folder / ".env").write_bytes(b"TIMER_BATCH_SIZE=\xff\n")
    assert complaint().startswith("can't read .env: ")


def test_unknown_override() -> None:
    """A misspelt override is a fault of the program, not silently ignored."""
    with pytest.raises(TypeError, match="batchsize"):
        load_config(batchsize=1)


def test_unknown_settings(folder: Path) -> None:
    """An unknown name, in the environment or in .env, is told with the nearest one; others' names are left alone."""
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
        "TIMER_BATCHSIZE is not a setting; did you mean TIMER_BATCH_SIZE?",
        "TIMER_POLING_INTERVAL is not a setting; did you mean TIMER_POLLING_INTERVAL?",
        "TIMER_ZZZZZZZZZZZZ is not a setting; .env.example lists them all",
    ]


def test_unknown_names_do_not_stop_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown name is no error, wherever it stands."""
    (folder / ".env").write_text("TIMER_BATCHSIZE=1\n")
    monkeypatch.setenv("TIMER_SERVICE_PORT", "tcp://10.0.0.1:80")
    assert load_config().batch_size == 1000


def test_example_lists_every_setting(folder: Path) -> None:
    """.env.example names every setting, in order, with its default and a line of explanation above."""
    entries = re.findall(r"^# (?!TIMER_)\S.*\n# TIMER_(\w+)=(.*)$", EXAMPLE.read_text("utf-8"), re.MULTILINE)
    assert [name.lower() for name, _ in entries] == list(Config.model_fields)
    assert [name.lower() for name, value in entries if not value] == [
        name for name, field in Config.model_fields.items() if field.default is None
    ]
    (folder / ".env").write_text("".join(f"TIMER_{name}={value}\n" for name, value in entries))
    assert load_config().model_dump() == {name: field.default for name, field in Config.model_fields.items()}


def test_example_works_as_it_is(folder: Path) -> None:
    """Copied to .env unchanged, .env.example changes nothing and warns of nothing."""
    defaults = load_config()
    (folder / ".env").write_bytes(EXAMPLE.read_bytes())
    assert load_config() == defaults
    assert unknown_settings({}) == []


@pytest.mark.parametrize("password", ["s3/cret", "3/cret", "3?cret", "3?c=r&et", "3#cret", "s#cret"])
def test_database_url_with_a_raw_password(password: str) -> None:
    """A password that is not percent-encoded is refused, and no part of it is taken for anything else, or told."""
    told = complaint(database_url=f"postgresql://user:{password}@host/database")
    assert "percent-encoded" in told
    assert "cret" not in told


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3%2Fcret@host:5432/database",
        "postgres://user@/database?host=a,b&port=5432,5433&target_session_attrs=read-write",
        "postgresql://host",
    ],
)
def test_database_url(url: str) -> None:
    """A URL of one server or of several names a PostgreSQL database."""
    config = load_config(database_url=url)
    assert (config.engine, config.postgres_url) == ("postgres", url)
