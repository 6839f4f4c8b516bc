"""The URLs of the page. They are stable: ids are parameters, because an id may contain any character."""

from typing import Any
from urllib.parse import quote, urlencode

ROOT = "/ui"


def link(page: str, **parameters: Any) -> str:
    """Return the URL of a page. Parameters that are None are left out."""
    given = {name: value for name, value in parameters.items() if value is not None}
    query = urlencode(given, quote_via=quote, safe="")
    return f"{ROOT}/{page}" + (f"?{query}" if query else "")
