"""Logins at a nats-server that can be replaced while it runs: a new one for each number."""

import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nkeys
import pytest
from nats.aio.client import RawCredentials

from tests.harness.processes import NatsServer

_USER, _ACCOUNT, _OPERATOR = nkeys.PREFIX_BYTE_USER, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_OPERATOR
_UNLIMITED = dict.fromkeys(
    ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage", "streams"), -1
)

_NOW = int(time.time())


class Rotation:
    """A kind of login at a nats-server. `server` and `write` take the number of the login: 0, 1 or 2."""

    settings: Mapping[str, str]
    """The settings of the service that name the files."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "secret"

    def server(self, number: int) -> str:
        """Return the part of the server's configuration that accepts only this login."""
        raise NotImplementedError

    def write(self, number: int) -> None:
        """Replace the file of the users, as a mounted secret is replaced: in one step."""
        replace_file(self.file, self.text(number))

    def text(self, number: int) -> str:
        """Return the content of the file."""
        raise NotImplementedError

    def login(self) -> dict[str, Any]:
        """Read the file, and return the login for `TimerClient.connect`."""
        raise NotImplementedError

    def configure(self, broker: NatsServer, number: int) -> None:
        """Replace the part of the server's configuration. It takes effect when the server reads it again."""
        file = Path(broker.command[-1])
        file.write_text(file.read_text().replace(self.server(number - 1), self.server(number)))

    async def replace(self, broker: NatsServer, number: int) -> None:
        """Let a running server accept this login, and not the one before."""
        self.configure(broker, number)
        broker.signal(signal.SIGHUP)


class Password(Rotation):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings = {"TIMER_BROKER_USER": "timer", "TIMER_BROKER_PASSWORD_FILE": str(self.file)}

    def server(self, number: int) -> str:
        return f'authorization {{ users: [{{ user: timer, password: "{self.text(number)}" }}] }}'

    def text(self, number: int) -> str:
        return f"password-{number}"

    def login(self) -> dict[str, Any]:
        return {"user": "timer", "password": self.file.read_text()}


class Token(Rotation):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings = {"TIMER_NATS_TOKEN_FILE": str(self.file)}

    def server(self, number: int) -> str:
        return f'authorization {{ token: "{self.text(number)}" }}'

    def text(self, number: int) -> str:
        return f"token-{number}"

    def login(self) -> dict[str, Any]:
        return {"token": self.file.read_text()}


class Nkey(Rotation):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings = {"TIMER_NATS_NKEY_SEED_FILE": str(self.file)}
        self._seeds = [_new_seed(_USER) for _ in range(3)]

    def server(self, number: int) -> str:
        return f"authorization {{ users: [{{ nkey: {_public(self._seeds[number])} }}] }}"

    def text(self, number: int) -> str:
        return self._seeds[number].decode()

    def login(self) -> dict[str, Any]:
        return {"nkeys_seed_str": self.file.read_text()}


class Credentials(Rotation):
    """A user with an nkey and a JWT of its account. The account has revoked the other users."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings = {"TIMER_NATS_CREDENTIALS": str(self.file)}
        self._operator, self._system, self._account = _new_seed(_OPERATOR), _new_seed(_ACCOUNT), _new_seed(_ACCOUNT)
        self._users = [_new_seed(_USER) for _ in range(3)]

    def server(self, number: int) -> str:
        revoked = {_public(seed): _NOW + 1000 for seed in self._users if seed != self._users[number]}
        claims: Mapping[bytes, Mapping[str, Any]] = {
            self._system: {},
            self._account: {"limits": _UNLIMITED, "revocations": revoked},
        }
        accounts = {_public(seed): self._jwt("account", seed, claim) for seed, claim in claims.items()}
        return "\n".join(
            (
                f"operator: {self._jwt('operator', self._operator, {})}",
                f"system_account: {_public(self._system)}",
                "resolver: MEMORY",
                f"resolver_preload: {{ {', '.join(f'{name}: {jwt}' for name, jwt in accounts.items())} }}",
            )
        )

    def text(self, number: int) -> str:
        seed = self._users[number]
        jwt = _jwt("user", self._account, _public(seed), dict.fromkeys(("subs", "data", "payload"), -1))
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
        )

    def login(self) -> dict[str, Any]:
        return {"user_credentials": RawCredentials(self.file.read_text())}

    def _jwt(self, kind: str, subject: bytes, claims: Mapping[str, Any]) -> str:
        return _jwt(kind, self._operator, _public(subject), claims)


class Certificate(Rotation):
    """The certificates of the server and of its users, and the authority that both trust."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        self._folder = folder
        cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
        self.settings = {"TIMER_BROKER_TLS_CA": cert, "TIMER_BROKER_TLS_CERT": cert, "TIMER_BROKER_TLS_KEY": key}
        for number in range(3):
            make_certificate(folder / str(number))

    def server(self, number: int) -> str:
        own = self._folder / str(number)
        pair = f'cert_file: "{own}/cert.pem", key_file: "{own}/key.pem"'
        return f'tls {{ {pair}, ca_file: "{own}/cert.pem", verify: true }}'

    def write(self, number: int) -> None:
        """Replace the certificate, and then its key: for a moment they do not fit."""
        for name in ("cert.pem", "key.pem"):
            replace_file(self._folder / name, (self._folder / str(number) / name).read_text())

    def login(self) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=self.settings["TIMER_BROKER_TLS_CA"])
        context.load_cert_chain(self.settings["TIMER_BROKER_TLS_CERT"], self.settings["TIMER_BROKER_TLS_KEY"])
        return {"tls": context}

    async def replace(self, broker: NatsServer, number: int) -> None:
        """Start the server again: it asks for certificates only at the beginning of a connection."""
        self.configure(broker, number)
        await broker.terminate()
        await broker.start()


def replace_file(file: Path, text: str) -> None:
    """Replace a file in one step."""
    draft = file.with_suffix(".new")
    draft.write_text(text)
    draft.replace(file)


def make_certificate(folder: Path) -> None:
    """Write a certificate for 127.0.0.1 that is its own authority, and its key."""
    folder.mkdir(exist_ok=True)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-days", "1", "-subj", "/CN=timers"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )


def _new_seed(prefix: int) -> bytes:
    seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
    return seed


def _public(seed: bytes) -> str:
    public: bytes = nkeys.from_seed(bytearray(seed)).public_key
    return public.decode()


def _jwt(kind: str, issuer: bytes, subject: str, claims: Mapping[str, Any]) -> str:
    """Return a JWT of NATS."""
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    body = {"iat": _NOW, "iss": _public(issuer), "name": kind, "sub": subject}
    nats = {**claims, "type": kind, "version": 2}
    signed = b".".join(_encode(json.dumps(part).encode()) for part in (head, {**body, "nats": nats}))
    return b".".join([signed, _encode(nkeys.from_seed(bytearray(issuer)).sign(signed))]).decode()


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
