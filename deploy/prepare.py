"""Prepare a NATS server: `python deploy/prepare.py FOLDER TENANT...`, then `nats-server -c FOLDER/nats.conf`.

Writes the configuration to FOLDER, with a random password for the operator, the service and each tenant. The server
gets only the hashes. FOLDER/passwords/NAME has the password. Only you can read these files. Run it again to add
tenants: what is in FOLDER stays. It needs Linux or the package bcrypt.

`--front TENANT:PORT` adds a tenant that has a server of its own in front: FOLDER/fronts/TENANT.conf.
"""

import argparse
import ctypes
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

SOURCE = Path(__file__).parent
TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
RESERVED = {"timer-service", "operator", "TIMERS", "TIMER_SERVICE", "SYS", "LINK", "RELAY"}
KEYWORD = "include"  # the server would take the name of this account for its instruction
# The passwords are random, so the cheapest hash is enough. The server computes it at each login, and a client may log
# in again and again.
COST = 4
BCRYPT_ALPHABET = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
READ_EVENTS = ('"$JS.API.CONSUMER.MSG.NEXT.*.*"', '"$JS.ACK.*.*.>"')
"""What a server of an older version does not export: it let tenants read TIMER_EVT itself."""
LISTEN = 'leafnodes { listen: "127.0.0.1:7422" }'
IMPORT = re.compile(r'service: { account: TIMERS, subject: ("([^"]+)") }(?:\s+to: "[^"]+")?')
LOGIN = re.compile(r"^.*?\n  limits {.*?}\n", re.DOTALL)
LINK_LOGIN = """
  # The link of the server in fronts/tenant-a.conf. It may publish only to subjects that begin with a secret. The server
  # sends traces (`Nats-Trace-Dest`) to no others, and the tenant cannot name one of them. The server also lets a link
  # publish to `$MQTT.`, unless that is denied.
  users: [{
    user: "tenant-a.link", password: $TENANT_A_PASSWORD, allowed_connection_types: [LEAFNODE]
    permissions: {
      subscribe: ["_INBOX.tenant-a.>", "timer.evt.v1.tenant-a.*", "_R_.>"]
      publish: { allow: ["$SECRET.>"], deny: ["$MQTT.>"] }
    }
  }]
  # The link has the subscriptions of all connections of the tenant. While a lost link is not noticed, there are two.
  limits { max_connections: 20, max_subscriptions: 700, max_payload: 1MB, max_leafnodes: 2 }
"""


def main(folder: Path, tenants: list[str], fronts: dict[str, int]) -> None:
    """Write the configuration if it is missing, and add the tenants that it lacks."""
    tenants = list(dict.fromkeys([*tenants, *fronts]))
    check_names(tenants)
    if any(character in str(folder.resolve()) for character in '"\\\n'):
        sys.exit(f"prepare.py: {str(folder)!r} has a quote, a backslash or a line break, so nats.conf cannot name it")
    server, accounts = folder / "nats.conf", folder / "tenants.conf"
    found = accounts.read_text() if accounts.exists() else ""
    new = [tenant for tenant in tenants if f"\n{tenant} {{\n" not in f"\n{found}"]
    for tenant, port in fronts.items():
        if tenant in new:
            check_port(folder, tenant, port)
        else:
            check_front(folder, tenant, port, found)
    # Not with `parents` alone: who can write to the folder can exchange the files in it.
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "passwords").mkdir(exist_ok=True, mode=0o700)
    next_step = write_server(folder, server)
    if fronts:
        (folder / "fronts").mkdir(exist_ok=True, mode=0o700)
        next_step = listen_for_fronts(server) or next_step
    added = [
        put_in_front(folder, tenant, fronts[tenant]) if tenant in fronts else tenant_block(folder, tenant)
        for tenant in new
    ]
    write_private(accounts, found + "".join(added))
    print(f"The passwords are in {folder}/passwords. {next_step}")
    for tenant in fronts:
        print(f"Then start the server in front of {tenant}: nats-server -c {folder}/fronts/{tenant}.conf")
    names = " ".join(["--", *tenants] if any(tenant.startswith("-") for tenant in tenants) else tenants)
    print(f"Then give each tenant its stream, as the operator: timer-service tenants separate {names}")


def check_names(tenants: list[str]) -> None:
    """End the program if a name cannot be the name of a tenant."""
    for tenant in tenants:
        if tenant in RESERVED or tenant.lower() == KEYWORD:
            sys.exit(f"prepare.py: {tenant!r} cannot be the name of a tenant: the server uses it for something else")
        if not TENANT.fullmatch(tenant):
            sys.exit(f"prepare.py: {tenant!r} cannot be the name of a tenant: use 1 to 64 letters, digits, - and _")


def check_front(folder: Path, tenant: str, port: int, found: str) -> None:
    """End the program if a tenant that has an account has no server in front with this port."""
    accounts, front = folder / "tenants.conf", folder / "fronts" / f"{tenant}.conf"
    if f'user: "{tenant}.link"' not in found:
        sys.exit(f"prepare.py: {tenant} has a login in {accounts}: delete its block there, and run this again")
    if not front.exists():
        sys.exit(f"prepare.py: {front} is missing: delete the block of {tenant} in {accounts}, and run this again")
    if f"\nport: {port}\n" not in front.read_text():
        sys.exit(f"prepare.py: {front} exists and has another port: change it there")


def check_port(folder: Path, tenant: str, port: int) -> None:
    """End the program if another server in front has this port already."""
    for front in sorted((folder / "fronts").glob("*.conf")):
        if front.stem != tenant and f"\nport: {port}\n" in front.read_text():
            sys.exit(f"prepare.py: {front} has the port {port} already: choose another one for {tenant}")


def write_server(folder: Path, server: Path) -> str:
    """Write the configuration of the server if it is missing. Return what to do next."""
    if server.exists():
        if not all(each in server.read_text() for each in READ_EVENTS):
            sys.exit(
                f"prepare.py: {server} is of an older version: replace its two exports for TIMER_EVT by those of "
                "deploy/nats.conf for TIMER_EVT_<tenant> (docs/security.md, Add a tenant)"
            )
        return "Reload the server, if it runs (docs/security.md, Add a tenant)."
    text = (SOURCE / "nats.conf").read_text().replace('"/data"', f'"{folder.resolve()}/data"')
    for user in ("operator", "timer-service"):
        text = text.replace(f"password: ${variable(user)}", hashed(folder, user))
    write_private(server, text)
    return f"Start the server: nats-server -c {server}"


def variable(user: str) -> str:
    """Return the variable that stands for the password of a user."""
    return f"{user.upper().replace('-', '_')}_PASSWORD"


def hashed(folder: Path, user: str) -> str:
    """Return the setting with the hash of the password of a user."""
    return f'password: "{hash_password(password(folder / "passwords" / user))}"'


def password(file: Path) -> str:
    """Return the password of a file. Write a random one if the file does not exist.

    Everybody can log in with an empty password.
    """
    if not file.exists():
        write_private(file, secrets.token_urlsafe(32))
    if not (found := file.read_text().strip()):
        sys.exit(f"prepare.py: {file} has no password: delete it, and run this again")
    return found


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read. If this fails, or is interrupted, the file is as it was.

    It keeps its owner, as the server may run as another user.
    """
    owner = file.stat() if file.is_file() and not file.is_symlink() else None
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        part.touch(mode=0o600, exist_ok=False)
        with part.open("w") as opened:
            opened.write(text)
            opened.flush()
            if owner is not None and owner.st_uid != os.geteuid():
                os.fchown(opened.fileno(), owner.st_uid, owner.st_gid)
            os.fsync(opened.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def example() -> str:
    """Return what the account of tenant-a has in tenants.conf."""
    return (SOURCE / "tenants.conf").read_text().partition("\ntenant-a {")[2].partition("\n}\n")[0]


def tenant_block(folder: Path, tenant: str) -> str:
    """Return the account of a tenant: that of tenant-a, with another name and password."""
    return named(example().replace("password: $TENANT_A_PASSWORD", hashed(folder, tenant)), tenant)


def named(block: str, tenant: str) -> str:
    """Return an account with the name of a tenant instead of tenant-a."""
    return f"{tenant} {{{block.replace('tenant-a', tenant)}\n}}\n\n"


def put_in_front(folder: Path, tenant: str, port: int) -> str:
    """Write the server in front of a tenant. Return the account of the tenant at the server behind it.

    Both servers use the same subjects on the link between them: those of tenants.conf, behind a secret.
    """
    secret = secrets.token_hex(16)
    login = LINK_LOGIN.replace("$SECRET", secret)
    login = login.replace("password: $TENANT_A_PASSWORD", hashed(folder, f"{tenant}.link"))
    behind = LOGIN.sub(lambda _: login, example(), count=1)
    before = tenant_block(folder, tenant).replace("account: TIMERS,", "account: RELAY,")
    before = before.replace("account: TIMER_SERVICE,", "account: LINK,")
    # This server adds a header to each message, and the one behind closes the link if a message has more than 1 MiB.
    before = before.replace("max_payload: 1MB", "max_payload: 1020KB")
    front = (SOURCE / "front.conf").read_text().replace("tenant-a", tenant)
    for placeholder, value in {
        "port: 4223": f"port: {port}",
        "$LINK_PASSWORD": quote(password(folder / "passwords" / f"{tenant}.link"), safe=""),
        '"$SECRET.': f'"{secret}.',
        '  include "tenants.conf"\n': before,
    }.items():
        front = front.replace(placeholder, value)
    write_private(folder / "fronts" / f"{tenant}.conf", front)
    return named(IMPORT.sub(rf'service: {{ account: TIMERS, subject: \1 }}, to: "{secret}.\2"', behind), tenant)


def listen_for_fronts(server: Path) -> str:
    """Let the server listen for the servers in front of tenants. Return what to do next if it did not listen before."""
    text = server.read_text()
    if "\nleafnodes {" in text:
        return ""
    if f"# {LISTEN}" not in text:
        sys.exit(f"prepare.py: {server} does not listen for servers in front: write this line into it: {LISTEN}")
    write_private(server, text.replace(f"# {LISTEN}", LISTEN))
    return f"Start the server, or restart it: nats-server -c {server}"


def tenant_and_port(text: str) -> tuple[str, int]:
    """Read the name of a tenant and the port of the server in front of it."""
    tenant, _, port = text.rpartition(":")
    if not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not TENANT:PORT, such as tenant-a:4223")
    return tenant, int(port)


def ports_of(fronts: list[tuple[str, int]]) -> dict[str, int]:
    """Return the port of each tenant. End the program if one has two, or if two have the same."""
    ports = dict(fronts)
    if len(set(fronts)) > len(ports):
        sys.exit("prepare.py: a tenant has one server in front: give one port for each")
    if len(set(ports.values())) < len(ports):
        sys.exit("prepare.py: the servers in front need different ports")
    return ports


def hash_password(text: str) -> str:
    """Return the bcrypt hash of a password, from the package bcrypt or from libcrypt."""
    salt = f"$2b${COST:02}$" + "".join(secrets.choice(BCRYPT_ALPHABET) for _ in range(21)) + "."
    with suppress(ImportError):
        import bcrypt  # noqa: PLC0415 - optional

        return str(bcrypt.hashpw(text.encode(), salt.encode()).decode())
    for name in ("libcrypt.so.1", "libcrypt.so.2"):
        with suppress(OSError):
            crypt = ctypes.CDLL(name).crypt
            crypt.restype = ctypes.c_char_p
            if (found := crypt(text.encode(), salt.encode()) or b"").startswith(b"$2b$"):
                return str(found.decode())
    sys.exit("prepare.py: no bcrypt on this system: run `pip install bcrypt`")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tenants", metavar="TENANT", nargs="*")
    parser.add_argument("--front", metavar="TENANT:PORT", action="append", default=[], type=tenant_and_port)
    given = parser.parse_args()
    if not given.tenants and not given.front:
        parser.error("name a tenant")
    try:
        main(given.folder, given.tenants, ports_of(given.front))
    except UnicodeDecodeError:
        sys.exit(f"prepare.py: a file in {given.folder} is not text in UTF-8")
    except OSError as error:
        sys.exit(f"prepare.py: cannot write the files: {error}. Name a folder that you can write to")
