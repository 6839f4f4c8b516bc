"""Whether others can read the connection to a broker, or use the broker."""

from collections.abc import Iterator
from ipaddress import ip_address

from timer_service.cli.doctor.finding import Finding, Status

_PAGE = "docs/security.md"


def check_exposure(host: str, *, encrypted: bool, authenticated: bool) -> Iterator[Finding]:
    """Check whether others can read the connection or use the broker. One within this machine is not exposed."""
    if _is_loopback(host):
        return
    if not encrypted:
        text = f"the connection to {host} is not encrypted: others on the network can read passwords and data"
        yield Finding("broker", Status.WARN, text, f"Encrypt the connections ({_PAGE}).")
    if not authenticated:
        text = f"{host} asks for no login: everyone who can connect may read, change and delete everything"
        yield Finding("broker", Status.WARN, text, f"Give each program a login ({_PAGE}).")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
