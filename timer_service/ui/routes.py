"""The routes of the page: they check the request, call a view, and turn its errors into pages."""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from timer_service.core.requests.computing import Computing
from timer_service.core.values.errors import Code, DatabaseUnavailableError, Rejection
from timer_service.ui.instance import Instance
from timer_service.ui.links import ROOT
from timer_service.ui.pages import Content, Pages, Redirect, static_response
from timer_service.ui.parameters import BadParameterError, Parameters
from timer_service.ui.reads import AT_ONCE, PageReader, Reads
from timer_service.ui.views import VIEWS
from timer_service.ui.views.view import Asked, View

log = logging.getLogger(__name__)

_STATUS = {Code.NOT_FOUND: 404}
_TITLES = {
    400: "This address is not right",
    404: "Not found",
    500: "The page failed",
    503: "The database is not available",
}


def ui_routes(instance: Instance) -> list[Route]:
    """Return the routes of the operations page."""
    computing = Computing()
    page_turn, read_turn = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
    pages = Pages(computing, instance.name, [(view.path, view.name) for view in VIEWS if view.name is not None])

    async def show(view: View, request: Request) -> Response:
        """Return the page of a view, or a page that says what is wrong. Unexpected errors are logged."""
        now = instance.clock.now()
        render = partial(pages.render, now=now, section=view.section)
        reads = Reads(PageReader(instance.database, read_turn), instance.clock, computing)
        async with page_turn:
            try:
                content = await _content(view, request, instance, reads, now)
                return RedirectResponse(content.url, 303) if isinstance(content, Redirect) else await render(content)
            except Exception:
                log.exception("page failed", extra={"page": view.path})
                return await render(_problem(500, "The log of the service has the reason."))

    async def static(request: Request) -> Response:
        return static_response(request.path_params["name"]) or PlainTextResponse("no such file", 404)

    async def unknown(_: Request) -> Response:
        return await pages.render(
            _problem(404, "This page does not exist. The links above lead to all pages."),
            now=instance.clock.now(),
            section="-",
        )

    async def root(_: Request) -> Response:
        return RedirectResponse(f"{ROOT}/")

    guard = partial(_guarded, instance.http_host)
    return [
        Route("/", guard(root)),
        Route(ROOT, guard(root)),
        *(Route(f"{ROOT}/{view.path}", guard(partial(show, view))) for view in VIEWS),
        Route(f"{ROOT}/static/{{name}}", guard(static)),
        Route(f"{ROOT}/{{rest:path}}", guard(unknown)),
    ]


async def _content(view: View, request: Request, instance: Instance, reads: Reads, now: int) -> Content | Redirect:
    """Return what a view shows or where it leads, or the page of its error."""
    try:
        parameters = Parameters(request.query_params.multi_items(), view.parameters)
        return await view.show(Asked(parameters, instance, reads, now))
    except BadParameterError as error:
        return _problem(400, str(error))
    except Rejection as rejection:
        faults = [f"{fault.path}: {fault.reason}" for fault in rejection.faults]
        return _problem(_STATUS.get(rejection.code, 400), ". ".join([rejection.message, *faults]))
    except DatabaseUnavailableError as error:
        return _problem(503, f"{error}. The overview shows the health of the service. Try again in a moment.")


def _problem(status: int, text: str) -> Content:
    return Content("problem.html", {"title": _TITLES[status], "text": text}, status)


def _guarded(
    http_host: str, handle: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that answers only requests for an IP address, localhost or the address of the settings.

    Otherwise a web site could point its own name at this machine, and read the pages through an operator's browser.
    """

    async def guarded(request: Request) -> Response:
        if _is_own(request.headers.get("host", ""), http_host):
            return await handle(request)
        text = "The page answers only requests for an IP address or localhost. A proxy must set the header Host to it."
        return PlainTextResponse(text, 421)

    return guarded


def _is_own(host: str, http_host: str) -> bool:
    """Return whether the header Host has an IP address, localhost or the address of the settings."""
    try:
        name = urlsplit(f"//{host}").hostname or ""  # in lower case
        return name in {"localhost", http_host.lower()} or bool(ipaddress.ip_address(name))  # raises if it is none
    except ValueError:
        return False
