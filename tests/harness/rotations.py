"""Logins at a nats-server that can be replaced while it runs: a new one for each number."""

import base64
import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nkeys
import pytest
from nats.aio.client import RawCredentials

_USER, _ACCOUNT, _OPERATOR = nkeys.PREFIX_BYTE_USER, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_OPERATOR
_UNLIMITED = dict.fromkeys(
    ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage", "streams"), -1
)


class Rotation:
    """A kind of login. `server` and `write` say what the server and its users have after the rotation `number`."""

    settings: Mapping[str, str]
    """The settings of the service that name the files."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "secret"

    def server(self, number: int) -> str:
        """Return the part of the server's configuration."""
        raise NotImplementedError

    def write(self, number: int) -> None:
        """Replace the files of the users, as a mounted secret is replaced: the new file gets the name of the old one."""
        draft = self.file.with_suffix(".new")
        draft.write_text(self.text(number))
        draft.replace(self.file)

    def text(self, number: int) -> str:
        raise NotImplementedError

    def login(self) -> dict[str, Any]:
        """Return the login of a client in its own process: a function for `TimerClient.connect`."""
        raise NotImplementedError


class Password(Rotation):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings = {"TIMER_NATS_USER": "timer", "TIMER_NATS_PASSWORD_FILE": str(self.file)}

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
        self._seeds = [_new_seed(_USER) for _ in range(4)]

    def server(self, number: int) -> str:
        return f"authorization {{ users: [{{ nkey: {_public(self._seeds[number])} }}] }}"

    def text(self, number: int) -> str:
        return self._seeds[number].decode()

    def login(self) -> dict[str, Any]:
        return {"nkeys_seed_str": self.file.read_text()}


class Credentials(Rotation):
    """A JWT of an account of its own for each number. The server knows only the newest account."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings = {"TIMER_NATS_CREDENTIALS": str(self.file)}
        self._operator, self._account = _new_seed(_OPERATOR), _new_seed(_ACCOUNT)
        self._users = [_new_seed(_USER) for _ in range(4)]

    def server(self, number: int) -> str:
        public = _public(self._account)
        revoked = {_public(seed): int(time.time()) + 1000 for seed in self._users if seed != self._users[number]}
        account = _jwt("account", self._operator, public, {"limits": _UNLIMITED, "revocations": revoked})
        operator = _jwt("operator", self._operator, _public(self._operator), {})
        return f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{ {public}: {account} }}"

    def text(self, number: int) -> str:
        seed = self._users[number]
        jwt = _jwt("user", self._account, _public(seed), {"subs": -1, "data": -1, "payload": -1})
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
        )

    def login(self) -> dict[str, Any]:
        return {"user_credentials": RawCredentials(self.file.read_text())}


class Certificate(Rotation):
    """Certificates of the server and of its users, and the authority of both. All are new for each number."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        self._folder = folder
        self._pair = folder / "cert.pem", folder / "key.pem"
        cert, key = map(str, self._pair)
        self.settings = {"TIMER_NATS_TLS_CA": cert, "TIMER_NATS_TLS_CERT": cert, "TIMER_NATS_TLS_KEY": key}
        for number in range(3):
            make_certificate(folder / str(number))

    def server(self, number: int) -> str:
        own = self._folder / str(number)
        return f'tls {{ cert_file: "{own}/cert.pem", key_file: "{own}/key.pem", ca_file: "{own}/cert.pem", verify: true }}'

    def write(self, number: int) -> None:
        for file in self._pair:  # not at the same time
            shutil.copy(self._folder / str(number) / file.name, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)

    def login(self) -> dict[str, Any]:
        cert, key = self._pair
        context = ssl.create_default_context(cafile=cert)
        context.load_cert_chain(cert, key)
        return {"tls": context}


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
    body = {"iat": int(time.time()), "iss": _public(issuer), "name": kind, "sub": subject}
    nats = {**claims, "type": kind, "version": 2}
    signed = b".".join(_encode(json.dumps(part).encode()) for part in (head, {**body, "nats": nats}))
    return b".".join([signed, _encode(nkeys.from_seed(bytearray(issuer)).sign(signed))]).decode()


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
