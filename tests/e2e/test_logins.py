"""Logins at a server that requires them."""

import shutil
import ssl
from pathlib import Path

import pytest

from tests.harness.processes import NatsServer
from tests.harness.rotations import make_certificate
from timer_service.adapters.nats import Login, NatsBroker

SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
PUBLIC = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"


async def test_nkey_connects(tmp_path: Path) -> None:
    """A client with the seed connects to a server that knows the nkey."""
    pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
    users = f"authorization {{ users: [{{ nkey: {PUBLIC} }}] }}"
    async with NatsServer(tmp_path / "nats", users) as server:
        await check_connects(server.url, Login(nkey_seed=SEED))


async def test_tls_certificate_connects(tmp_path: Path) -> None:
    """A client with a certificate connects to a server that requires certificates of the same private authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    make_certificate(tmp_path)
    pair = f'cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem"'
    tls = f'tls {{ {pair}, ca_file: "{tmp_path}/cert.pem", verify: true }}'
    login = Login(tls_ca=tmp_path / "cert.pem", tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")
    context = login.options()["tls"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    async with NatsServer(tmp_path / "nats", tls) as server:
        await check_connects(server.url.replace("nats://", "tls://"), login)


async def check_connects(url: str, login: Login) -> None:
    broker = await NatsBroker.connect(url, "timer", login=login.options, reply_prefix="_INBOX.", manage_streams=True)
    assert broker.health.reason is None
    await broker.close()
