"""What a view gets and returns."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from timer_service.ui.instance import Instance
from timer_service.ui.pages import Content, Redirect
from timer_service.ui.parameters import Parameters
from timer_service.ui.reads import Reads


class Asked(NamedTuple):
    """A request for a page."""

    parameters: Parameters
    instance: Instance
    reads: Reads
    now: int


Show = Callable[[Asked], Awaitable[Content | Redirect]]


class View(NamedTuple):
    """One page: its URL, and the function that reads its content."""

    path: str
    name: str | None
    """Its name in the navigation; None if another page leads to it."""
    section: str
    """The path of the page in the navigation to which this one belongs."""
    parameters: frozenset[str]
    """The names of the parameters that it knows."""
    show: Show
    """Raises `BadParameterError`, `Rejection` and `DatabaseUnavailableError`."""


def main_view(path: str, name: str, show: Show, *parameters: str) -> View:
    """Return a view in the navigation."""
    return View(path, name, path, frozenset(parameters), show)


def item_view(path: str, section: View, show: Show, *parameters: str) -> View:
    """Return the view of one item of a list. Its parameters are the tenant, the id and others."""
    return View(path, None, section.path, frozenset({"tenant", "id", *parameters}), show)
