"""The text of an error for logs, health pages and stored reasons. It never contains values of users or secrets."""

import traceback
from collections.abc import Iterator

from timer_service.core.values.errors import ExplainedError

_WITHOUT_VALUES = frozenset(["timer_service", "nats", "sqlite3", "uvicorn"])
"""Packages whose errors name settings, tables, subjects and files, but no values of rows and messages."""
_ABOUT_CODE = (OSError, AssertionError, AttributeError, ImportError, NameError, RuntimeError, TypeError)
"""Errors of Python about files and code. A KeyError or a ValueError shows the value that is wrong."""
_MOST_CAUSES = 10


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


def error_trace(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, each with its `error_text` and without local variables."""
    return "\n".join(_trace(each) for each in _chain(error))


def _trace(error: BaseException) -> str:
    return f"{''.join(traceback.format_tb(error.__traceback__))}{error_text(error)}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and the errors of a group."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MOST_CAUSES:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        cause = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        waiting += [cause] if cause is not None else []
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()


def _has_no_values(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return False
    packages = {each.__module__.partition(".")[0] for each in type(error).__mro__}
    return not packages.isdisjoint(_WITHOUT_VALUES) or isinstance(error, _ABOUT_CODE)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
