"""The text of an error for logs, health pages and stored reasons. It never contains values of users or secrets."""

from timer_service.core.values.errors import ExplainedError

_WITHOUT_VALUES = frozenset(["timer_service", "nats", "sqlite3", "uvicorn"])
"""Packages whose errors name settings, tables, subjects and files, but no values of rows and messages."""
_ABOUT_CODE = (OSError, AssertionError, AttributeError, ImportError, NameError, RuntimeError, TypeError)
"""Errors of Python about files and code. A KeyError or a ValueError shows the value that is wrong."""


def error_text(error: BaseException) -> str:
    """Return the type of an error. Add its text if errors of this type contain no values.

    Otherwise the code that raised or passed on the error can add a note with the part of the text that may be shown.
    An `ExplainedError` is shown without its type.
    """
    shown = [str(error)] if _has_no_values(error) else []
    text = "; ".join(filter(None, [*shown, *getattr(error, "__notes__", ())]))
    if isinstance(error, ExplainedError):
        return text
    return f"{_type_name(error)}: {text}" if text else _type_name(error)


def _has_no_values(error: BaseException) -> bool:
    """Return whether the text of an error may be shown, by the package of its type or of one of its bases."""
    packages = {each.__module__.partition(".")[0] for each in type(error).__mro__}
    return not packages.isdisjoint(_WITHOUT_VALUES) or isinstance(error, _ABOUT_CODE)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
