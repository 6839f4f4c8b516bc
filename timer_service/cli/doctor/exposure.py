"""Whether others can read the connection to the broker, use the broker, or delete its streams."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from timer_service.cli.doctor.finding import Finding, Status

_PAGE = "docs/security.md"


def check_exposure(host: str, *, encrypted: bool, authenticated: bool) -> Iterator[Finding]:
    """Check the connection to a host. Connections within one machine are not exposed."""
    if _is_loopback(host):
        return
    if not encrypted:
        text = f"the connection to {host} is not encrypted: others on the network can read passwords and data"
        yield Finding("broker", Status.WARN, text, f"Add a tls block to the server ({_PAGE}, Encrypt the connections).")
    if not authenticated:
        text = f"{host} asks for no login: everyone who can connect may read, change and delete everything"
        yield Finding("broker", Status.WARN, text, f"Run the server with deploy/nats.conf ({_PAGE}).")


def check_rights(account: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Check that the login cannot use the whole JetStream account. `account`: its INFO, if the server shows it."""
    if account is not None and "error" not in account:
        text = "this login may read and delete all streams of its account"
        yield Finding("permissions", Status.WARN, text, f"Give the service an account of its own ({_PAGE}).")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
