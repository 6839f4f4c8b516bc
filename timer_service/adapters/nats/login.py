"""The login of a NATS connection, and its TLS files."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timer_service.core.values.errors import StartError


@dataclass(frozen=True, slots=True)
class Login:
    """At most one way to authenticate, and the files for TLS."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def options(self) -> dict[str, Any]:
        """Return the options for `nats.connect`. Raises `StartError` with the name of a setting that cannot be used."""
        if self.nkey_seed is not None:
            _check_seed(self.nkey_seed, "TIMER_NATS_NKEY_SEED")
        if self.credentials is not None:
            _check_credentials(self.credentials)
        options = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "nkeys_seed_str": self.nkey_seed,
            "user_credentials": self.credentials and str(self.credentials),
            "tls": self._tls(),
        }
        return {name: value for name, value in options.items() if value is not None}

    def _tls(self) -> ssl.SSLContext | None:
        if self.tls_ca is None and self.tls_cert is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
        except OSError as error:
            raise StartError(f"TIMER_NATS_TLS_CA: cannot load the certificates: {error}") from error
        if self.tls_cert is not None:
            try:
                # Without a password OpenSSL asks for one on the terminal if the key is encrypted.
                context.load_cert_chain(self.tls_cert, self.tls_key, password="")
            except OSError as error:
                raise StartError(
                    f"TIMER_NATS_TLS_CERT, TIMER_NATS_TLS_KEY: cannot load the certificate and its key: {error}"
                ) from error
        return context


def _check_credentials(path: Path) -> None:
    """Raise `StartError` unless the file holds credentials. In another file the driver would search forever."""
    name = "TIMER_NATS_CREDENTIALS"
    try:
        lines = path.read_text("utf-8").splitlines()
        if not any("BEGIN NATS USER JWT" in line for line in lines):
            raise StartError(f"{name}: holds no user JWT")
        (begin,) = (index for index, line in enumerate(lines) if "BEGIN USER NKEY SEED" in line)
        seed = lines[begin + 1]
    except OSError as error:
        raise StartError(f"{name}: cannot read the file: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise StartError(f"{name}: holds no nkey seed of a user") from error
    _check_seed(seed, name)


def _check_seed(seed: str, name: str) -> None:
    try:
        import nkeys  # noqa: PLC0415 - optional
    except ImportError as error:
        raise StartError(f"{name} needs the package nkeys: pip install 'timer-service[nkeys]'") from error
    try:
        nkeys.from_seed(bytearray(seed.strip().encode())).wipe()
    except Exception as error:
        raise StartError(f"{name}: holds no valid nkey seed") from error
