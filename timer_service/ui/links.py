"""The URLs of the page, and the commands to copy into a shell.

URLs are stable: ids are parameters, because an id may contain any character.
"""

import shlex
from typing import Any
from urllib.parse import quote, urlencode

from timer_service.visible import escape_hidden

ROOT = "/ui"


def link(page: str, **parameters: Any) -> str:
    """Return the URL of a page. Parameters that are None are left out."""
    given = {name: value for name, value in parameters.items() if value is not None}
    query = urlencode(given, quote_via=quote, safe="")
    return f"{ROOT}/{page}" + (f"?{query}" if query else "")


def command(group: str, verb: str, *arguments: str, **options: str | bool) -> str:
    """Return a `timer-service` command, quoted for bash and zsh. An option that is True has no value."""
    given = [f"--{name}" if value is True else f"--{name}={_quote(str(value))}" for name, value in options.items()]
    quoted = [*map(_quote, arguments)]
    # Without `--`, an argument that begins with a dash would count as an option.
    has_dash = any(each.startswith("-") for each in arguments)
    return " ".join(["timer-service", group, verb, *([*given, "--", *quoted] if has_dash else [*quoted, *given])])


def _quote(text: str) -> str:
    """Return an argument in quotes. Characters that cannot be seen are written as escapes."""
    return shlex.quote(text) if escape_hidden(text) == text else f"$'{''.join(map(_escape, text))}'"


def _escape(character: str) -> str:
    """Return a character as it is written between `$'` and `'`."""
    if character in "\\'":
        return f"\\{character}"
    return character if escape_hidden(character) == character else f"\\U{ord(character):08x}"
