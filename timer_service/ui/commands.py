"""Commands to copy into a shell."""

import shlex

from timer_service.visible import escape_hidden


def command(group: str, verb: str, *arguments: str) -> str:
    """Return a `timer-service` command, quoted for bash and zsh."""
    # Without `--`, an argument that begins with a dash would count as an option.
    marked = ["--", *arguments] if any(each.startswith("-") for each in arguments) else arguments
    return " ".join(["timer-service", group, verb, *map(_quote, marked)])


def _quote(text: str) -> str:
    """Return an argument in quotes. Characters that cannot be seen are written as escapes."""
    return shlex.quote(text) if escape_hidden(text) == text else f"$'{''.join(map(_escape, text))}'"


def _escape(each: str) -> str:
    if each in "\\'":
        return f"\\{each}"
    return each if escape_hidden(each) == each else f"\\U{ord(each):08x}"
