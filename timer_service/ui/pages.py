"""Responses: a view's content in its template, with the headers that protect the reader."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from starlette.responses import HTMLResponse, Response

from timer_service.core.requests.computing import Computing, Steps
from timer_service.ui import formats
from timer_service.ui.links import command, link

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class Content(NamedTuple):
    """What a view shows: the template, and its values."""

    template: str
    values: Mapping[str, Any]
    status: int = 200


class Redirect(NamedTuple):
    """Leads to another page."""

    url: str


class Pages:
    """Renders templates. Each value is escaped, and shows its invisible characters."""

    def __init__(self, computing: Computing, instance: str, navigation: Sequence[tuple[str, str]]) -> None:
        """`instance` is the name of the instance. `navigation` has the path and the name of each main page."""
        self._computing = computing
        self._common = {"instance": instance, "navigation": navigation}

    async def render(self, content: Content, *, now: int, section: str) -> Response:
        """Return the response with a content. `section` is the part of the page to mark in the navigation."""
        values = {**content.values, **self._common, "now": now, "section": section}
        template = _environment().get_template(content.template)
        text = await self._computing.run(_in_steps(template, values))
        return HTMLResponse(text, content.status, {**_HEADERS, "Cache-Control": "no-store"})


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("timer_service.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=formats.visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(link=link, command=command)
    environment.filters.update({each.__name__: each for each in formats.FILTERS})
    return environment


def _in_steps(template: Template, values: Mapping[str, Any]) -> Steps[str]:
    """Render a template piece by piece, so that a large page does not hold the event loop."""
    pieces = []
    for piece in template.generate(values):
        pieces.append(piece)
        yield
    return "".join(pieces)


def static_response(name: str) -> Response | None:
    """Return a file of the page, or None if there is no such file."""
    if name not in _STATIC:
        return None
    body = files("timer_service.ui").joinpath("static", name).read_bytes()
    return Response(body, 200, {**_HEADERS, "Cache-Control": "no-cache"}, media_type=_STATIC[name])
