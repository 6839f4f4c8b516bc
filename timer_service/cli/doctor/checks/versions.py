"""Which versions of the servers and libraries there are."""

from timer_service.cli.doctor.finding import Finding, Status

_SAFE_SQLITE = (3, 51, 3)
_ATOMIC_SERVER = (2, 12)


def check_server(version: tuple[int, int, int], url: str) -> Finding:
    """Judge a NATS server that answers."""
    text = f"nats-server {'.'.join(map(str, version))} at {url}"
    if version[:2] < _ATOMIC_SERVER:
        return Finding("broker", Status.WARN, f"{text} has no atomic batches", "Run nats-server 2.12 or newer.")
    return Finding("broker", Status.OK, text)


def check_sqlite(version: tuple[int, ...]) -> Finding:
    """Judge the SQLite library."""
    text = f"SQLite {'.'.join(map(str, version))}"
    if version < _SAFE_SQLITE:
        return Finding(
            "sqlite",
            Status.WARN,
            f"{text} can corrupt a WAL database that several connections write to",
            "The service writes through one connection, and its lock file keeps other instances out: let nothing else "
            "write to the file, or use a Python with SQLite 3.51.3 or newer.",
        )
    return Finding("sqlite", Status.OK, text)
