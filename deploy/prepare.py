"""Prepare a NATS server: `python deploy/prepare.py FOLDER TENANT...`, then `nats-server -c FOLDER/nats.conf`.

Writes the configuration to FOLDER, with a random password for the operator, the service and each tenant. The server
gets only the hashes. FOLDER/passwords/NAME has the password. Only you can read these files. Run it again to add
tenants: what is in FOLDER stays. It needs Linux or the package bcrypt.
"""

import ctypes
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path

SOURCE = Path(__file__).parent
TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
RESERVED = {"timer-service", "operator", "TIMERS", "TIMER_SERVICE", "SYS"}
KEYWORD = "include"  # the server would take the name of this account for its instruction
# The passwords are random, so the cheapest hash is enough. The server computes it at each login, and a client may log
# in again and again.
COST = 4
BCRYPT_ALPHABET = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def main(folder: Path, tenants: list[str]) -> None:
    """Write the configuration if it is missing, and add the tenants that it lacks."""
    for tenant in tenants:
        if tenant in RESERVED or tenant.lower() == KEYWORD:
            sys.exit(f"prepare.py: {tenant!r} cannot be the name of a tenant: the server uses it for something else")
        if not TENANT.fullmatch(tenant):
            sys.exit(f"prepare.py: {tenant!r} cannot be the name of a tenant: use 1 to 64 letters, digits, - and _")
    # Not with `parents` alone: who can write to the folder can exchange the files in it.
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "passwords").mkdir(exist_ok=True, mode=0o700)
    server, accounts = folder / "nats.conf", folder / "tenants.conf"
    next_step = "Reload the server, if it runs (docs/security.md, Add a tenant)."
    if not server.exists():
        next_step = f"Start the server: nats-server -c {server}"
        text = (SOURCE / "nats.conf").read_text().replace('"/data"', f'"{folder.resolve()}/data"')
        for user in ("operator", "timer-service"):
            text = text.replace(f"password: ${variable(user)}", hashed(folder, user))
        write_private(server, text)
    found = accounts.read_text() if accounts.exists() else ""
    new = [tenant for tenant in dict.fromkeys(tenants) if f"\n{tenant} {{\n" not in f"\n{found}"]
    added = [tenant_block(folder, tenant) for tenant in new]
    write_private(accounts, found + "".join(added))
    print(f"The passwords are in {folder}/passwords. {next_step}")
    print(f"Then give each tenant its stream, as the operator: timer-service tenants separate {' '.join(tenants)}")


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
    """Return the account of a tenant: that of tenant-a, with another name and password."""
    block = (SOURCE / "tenants.conf").read_text().partition("\ntenant-a {")[2].partition("\n}\n")[0]
    logged_in = block.replace("password: $TENANT_A_PASSWORD", hashed(folder, tenant))
    return f"{tenant} {{{logged_in.replace('tenant-a', tenant)}\n}}\n\n"


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
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):  # noqa: PLR2004 - the folder and a tenant
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except OSError as error:
        sys.exit(f"prepare.py: cannot write the files: {error}. Name a folder that you can write to")
