"""Prepare a NATS server: `python deploy/prepare.py FOLDER TENANT...`, then `nats-server -c FOLDER/nats.conf`.

Writes the configuration to FOLDER, with a random password for the operator, the service and each tenant. The server
gets only the hashes. FOLDER/passwords/NAME has the password. Only you can read these files. Run it again to add
tenants: what is in FOLDER stays. For NATS it needs Linux or the package bcrypt.

`--broker redis` and `--broker rabbitmq` prepare a server of these.
"""

import argparse
import base64
import ctypes
import hashlib
import json
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent
TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
USERS = ("operator", "timer-service")
RESERVED = {
    "nats": {"TIMERS", "TIMER_SERVICE", "SYS"},
    "redis": {"default"},
    "rabbitmq": {"guest", "timer", "amq"},  # names of queues begin with the name of a tenant, or with one of these
}
KEYWORD = "include"  # nats-server would take the name of this account for its instruction
# The passwords are random, so the cheapest hash is enough. The server computes it at each login, and a client may log
# in again and again.
COST = 4
BCRYPT_ALPHABET = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def main(broker: str, folder: Path, tenants: list[str]) -> None:
    """Write the configuration if it is missing, and add the tenants that it lacks."""
    tenants = list(dict.fromkeys(tenants))
    check_names(broker, tenants)
    if any(character in str(folder.resolve()) for character in '"\\\n'):
        sys.exit(f"prepare.py: {str(folder)!r} has a quote, a backslash or a line break, so the server cannot read it")
    # Not with `parents` alone: who can write to the folder can exchange the files in it.
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "passwords").mkdir(exist_ok=True, mode=0o700)
    next_steps = {"nats": prepare_nats, "redis": prepare_redis, "rabbitmq": prepare_rabbitmq}[broker](folder, tenants)
    print(f"The passwords are in {folder}/passwords. {next_steps}")


def check_names(broker: str, tenants: list[str]) -> None:
    """End the program if a name cannot be the name of a tenant."""
    for tenant in tenants:
        if tenant in {*USERS, *RESERVED[broker]} or tenant.lower() == KEYWORD:
            sys.exit(f"prepare.py: {tenant!r} cannot be the name of a tenant: the server uses it for something else")
        if not TENANT.fullmatch(tenant):
            sys.exit(f"prepare.py: {tenant!r} cannot be the name of a tenant: use 1 to 64 letters, digits, - and _")


def prepare_nats(folder: Path, tenants: list[str]) -> str:
    """Write nats.conf and tenants.conf. Return what to do next."""
    accounts = folder / "tenants.conf"
    found = accounts.read_text() if accounts.exists() else ""
    new = [tenant for tenant in tenants if f"\n{tenant} {{\n" not in f"\n{found}"]
    next_step = write_nats_server(folder, folder / "nats.conf")
    write_private(accounts, found + "".join(tenant_block(folder, tenant) for tenant in new))
    names = " ".join(["--", *tenants] if any(tenant.startswith("-") for tenant in tenants) else tenants)
    return f"{next_step}\nThen give each tenant its stream, as the operator: timer-service tenants separate {names}"


def prepare_redis(folder: Path, tenants: list[str]) -> str:
    """Write redis.conf and users.acl. Return what to do next."""
    server, users = folder / "redis.conf", folder / "users.acl"
    template = (SOURCE / "redis" / "users.acl").read_text().splitlines()
    found = users.read_text().splitlines() if users.exists() else template[:1]
    for user in (*USERS, *tenants):
        if not any(line.startswith(f"user {user} ") for line in found):
            model = user if user in USERS else "tenant-a"
            (line,) = (line for line in template if line.startswith(f"user {model} "))
            secret = hashlib.sha256(password(folder / "passwords" / user).encode()).hexdigest()
            found.append(line.replace(f">${variable(model)}", f"#{secret}").replace(model, user))
    write_private(users, "\n".join(found) + "\n")
    next_step = "Load the users, as the operator: ACL LOAD"
    if not server.exists():
        (folder / "data").mkdir(exist_ok=True, mode=0o700)
        text = (SOURCE / "redis" / "redis.conf").read_text().replace("/data/users.acl", f'"{users.resolve()}"')
        write_private(server, text.replace("dir /data", f'dir "{folder.resolve()}/data"'))
        next_step = f"Start the server: redis-server {server}"
    return f"{next_step}\nThen give each tenant its streams, as the operator: SADD timer:tenants {' '.join(tenants)}"


def prepare_rabbitmq(folder: Path, tenants: list[str]) -> str:
    """Write rabbitmq.conf, enabled_plugins and definitions.json. Return what to do next."""
    definitions = folder / "definitions.json"
    template: dict[str, list[dict[str, Any]]] = json.loads((SOURCE / "rabbitmq" / definitions.name).read_text())
    if definitions.exists():
        found = json.loads(definitions.read_text())
        next_step = f"Load the users, as the user of the server: rabbitmqctl import_definitions {definitions}"
    else:
        found = {kind: [row for row in rows if "tenant-" not in json.dumps(row)] for kind, rows in template.items()}
        for name in ("rabbitmq.conf", "enabled_plugins"):
            write_private(folder / name, (SOURCE / "rabbitmq" / name).read_text())
        next_step = "Copy the three files beside it to /etc/rabbitmq, and start the server."
    for tenant in tenants:
        if tenant not in [user["name"] for user in found["users"]]:
            for kind, rows in template.items():
                of_model = [row for row in map(json.dumps, rows) if "tenant-a" in row]
                found[kind] += [json.loads(row.replace("tenant-a", tenant)) for row in of_model]
    for user in found["users"]:
        if user.pop("password", None):
            user.update(rabbitmq_hash(password(folder / "passwords" / user["name"])))
    write_private(definitions, json.dumps(found, indent=1) + "\n")
    return next_step


def rabbitmq_hash(text: str) -> dict[str, str]:
    """Return the fields of a user with the hash of a password."""
    salt = secrets.token_bytes(4)
    digest = base64.b64encode(salt + hashlib.sha256(salt + text.encode()).digest()).decode()
    return {"password_hash": digest, "hashing_algorithm": "rabbit_password_hashing_sha256"}


def write_nats_server(folder: Path, server: Path) -> str:
    """Write the configuration of the server if it is missing. Return what to do next."""
    if server.exists():
        return "Reload the server, if it runs (docs/security.md, Add a tenant)."
    text = (SOURCE / "nats.conf").read_text().replace('"/data"', f'"{folder.resolve()}/data"')
    for user in USERS:
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


def tenant_block(folder: Path, tenant: str) -> str:
    """Return the account of a tenant: that of tenant-a in tenants.conf, with another name and password."""
    block = (SOURCE / "tenants.conf").read_text().partition("\ntenant-a {")[2].partition("\n}\n")[0]
    block = block.replace("password: $TENANT_A_PASSWORD", hashed(folder, tenant)).replace("tenant-a", tenant)
    return f"{tenant} {{{block}\n}}\n\n"


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
    parser.add_argument("--broker", choices=RESERVED, default="nats")
    parser.add_argument("folder", type=Path)
    parser.add_argument("tenants", metavar="TENANT", nargs="+")
    given = parser.parse_args()
    try:
        main(given.broker, given.folder, given.tenants)
    except UnicodeDecodeError:
        sys.exit(f"prepare.py: a file in {given.folder} is not text in UTF-8")
    except OSError as error:
        sys.exit(f"prepare.py: cannot write the files: {error}. Name a folder that you can write to")
