import sys
from pathlib import Path

import pytest

from timer_service.adapters.nats import Login
from timer_service.core.errors import StartError

SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"


def complaint(login: Login) -> str:
    with pytest.raises(StartError) as caught:
        login.options()
    return str(caught.value)


def test_nothing_set() -> None:
    """Without a login the driver is given nothing."""
    assert Login().options() == {}


def test_options() -> None:
    """A login is given to the driver under the driver's names, and its secrets are never printed."""
    assert Login(user="me", password="s3cret").options() == {"user": "me", "password": "s3cret"}
    assert Login(token="s3cret").options() == {"token": "s3cret"}
    assert "s3cret" not in repr(Login(user="me", password="s3cret", token="s3cret", nkey_seed="s3cret"))


def test_nkeys_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the package nkeys, a seed and a .creds file are refused with what to install."""
    monkeypatch.setitem(sys.modules, "nkeys", None)
    assert complaint(Login(nkey_seed=SEED)) == (
        "TIMER_NATS_NKEY_SEED needs the package nkeys: pip install 'timer-service[nkeys]'"
    )
    credentials = tmp_path / "user.creds"
    credentials.write_text(f"-----BEGIN NATS USER JWT-----\nx\n-----BEGIN USER NKEY SEED-----\n{SEED}\n")
    assert "TIMER_NATS_CREDENTIALS needs the package nkeys" in complaint(Login(credentials=credentials))


@pytest.mark.parametrize("content", ["", "nonsense", "BEGIN NATS USER JWT\nx\n", "BEGIN USER NKEY SEED\nx\n"])
def test_credentials_that_are_none(content: str, tmp_path: Path) -> None:
    """A file that holds no credentials is refused; the driver would read in it for ever."""
    file = tmp_path / "user.creds"
    file.write_text(content)
    assert complaint(Login(credentials=file)).startswith("TIMER_NATS_CREDENTIALS: holds no ")


def test_seed_that_is_none() -> None:
    """A seed that can't be read is refused without being repeated."""
    pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
    assert complaint(Login(nkey_seed=f"{SEED[:-3]}!!!")) == "TIMER_NATS_NKEY_SEED: holds no valid nkey seed"


def test_tls_files_that_are_none(tmp_path: Path) -> None:
    """A file that is no certificate or no key is refused by the name of its setting."""
    file = tmp_path / "file.pem"
    file.write_text("nonsense")
    assert complaint(Login(tls_ca=file)).startswith("TIMER_NATS_TLS_CA: cannot load the certificates: ")
    assert complaint(Login(tls_cert=file, tls_key=file)).startswith("TIMER_NATS_TLS_CERT, TIMER_NATS_TLS_KEY: ")
