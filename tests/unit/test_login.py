"""Tests of `Login`: the options of the driver, and the errors of invalid files and keys."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from timer_service import secret_source
from timer_service.adapters.nats import Login
from timer_service.app.login import login_options, nats_login
from timer_service.config import load_config
from timer_service.core.values.errors import StartError
from timer_service.secret_source import SecretSource

SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"


def error_of(login: Login) -> str:
    with pytest.raises(StartError) as caught:
        login.options()
    return str(caught.value)


def test_missing_nkeys_package_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the package nkeys, the error of a seed or a .creds file says what to install."""
    monkeypatch.setitem(sys.modules, "nkeys", None)
    assert error_of(Login(nkey_seed=SEED)) == (
        "TIMER_NATS_NKEY_SEED needs the package nkeys: pip install 'timer-service[nkeys]'"
    )
    credentials = tmp_path / "user.creds"
    credentials.write_text(f"-----BEGIN NATS USER JWT-----\nx\n-----BEGIN USER NKEY SEED-----\n{SEED}\n")
    assert "TIMER_NATS_CREDENTIALS needs the package nkeys" in error_of(Login(credentials=credentials))


@pytest.mark.parametrize("content", ["", "nonsense", "BEGIN NATS USER JWT\nx\n", "BEGIN USER NKEY SEED\nx\n"])
def test_file_without_credentials_is_refused(content: str, tmp_path: Path) -> None:
    """A file without credentials is refused, because the driver would read it forever."""
    file = tmp_path / "user.creds"
    file.write_text(content)
    assert error_of(Login(credentials=file)).startswith("TIMER_NATS_CREDENTIALS: holds no ")


def test_invalid_seed_is_not_printed() -> None:
    """The error of an invalid seed does not contain the seed."""
    pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
    assert error_of(Login(nkey_seed=f"{SEED[:-3]}!!!")) == "TIMER_NATS_NKEY_SEED: holds no valid nkey seed"


def test_invalid_tls_file_names_its_setting(tmp_path: Path) -> None:
    """The error of an invalid certificate or key names its settings."""
    file = tmp_path / "file.pem"
    file.write_text("nonsense")
    assert error_of(Login(tls_ca=file)).startswith("TIMER_BROKER_TLS_CA: cannot load the certificates: ")
    assert error_of(Login(tls_cert=file, tls_key=file)).startswith("TIMER_BROKER_TLS_CERT, TIMER_BROKER_TLS_KEY: ")


@pytest.mark.parametrize(
    ("setting", "login"),
    [
        ("broker_password", Login(user="me", password="s3cret")),
        ("nats_token", Login(token="s3cret")),
        ("nats_nkey_seed", Login(nkey_seed="s3cret")),
    ],
)
def test_secrets_of_the_settings(setting: str, login: Login, tmp_path: Path) -> None:
    """Each secret reaches the login under its own name, from its setting or from the file that another one names."""
    file = tmp_path / "secret"
    file.write_text("s3cret")
    file.chmod(0o600)
    user = {"broker_user": "me"} if login.user else {}
    assert nats_login(load_config(**user, **{setting: "s3cret"})) == login
    assert nats_login(load_config(**user, **{f"{setting}_file": file})) == login


def test_files_of_the_settings(tmp_path: Path) -> None:
    """The files for TLS and of the credentials reach the login under their own names."""
    files = credentials, ca, cert, key = [tmp_path / name for name in ("credentials", "ca", "cert", "key")]
    for file in files:
        file.touch()
    config = load_config(nats_credentials=credentials, broker_tls_ca=ca, broker_tls_cert=cert, broker_tls_key=key)
    assert nats_login(config) == Login(credentials=credentials, tls_ca=ca, tls_cert=cert, tls_key=key)


def test_files_are_read_again(tmp_path: Path) -> None:
    """Each call returns the secret that the file has then."""
    file = tmp_path / "secret"
    file.write_text("one")
    config = load_config(nats_token_file=file)
    assert login_options(config) == {"token": "one"}
    file.write_text("two")
    assert login_options(config) == {"token": "two"}


async def test_a_read_that_hangs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A connect uses the last secrets after a while, and starts no second read beside the one that hangs."""
    monkeypatch.setattr(secret_source, "READ_SECONDS", 0.01)
    reads, end = ["first"], threading.Event()

    def read() -> str:
        if len(reads) == 2:
            end.wait()
        reads.append(f"number {len(reads)}")
        return reads[-1]

    source = SecretSource(read, "the login at x")
    try:
        assert [await source.read() for _ in range(2)] == ["number 1", "number 1"]
    finally:
        end.set()
    assert "the login at x cannot be read: TimeoutError; the last one is used" in caplog.text
    async with asyncio.timeout(10):
        while await source.read() == "number 1":
            await asyncio.sleep(0)


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log has each reason once until the server accepts the secrets, and none before it has ever accepted any."""
    source = SecretSource(lambda: "", "the login at x")
    source.refused("at the start")
    source.accepted()
    for reason in ("one", "one", "two"):
        assert source.refused(reason) == reason
    source.accepted()
    source.refused("two")
    assert [each.message for each in caplog.records] == ["one", "two", "two"]
