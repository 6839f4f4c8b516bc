"""A web application that receives events while it serves (docs/receive.md). FastAPI takes the same `lifespan`.

uvicorn --app-dir docs/examples web:web
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from timer_service.client import DueTimeReached, TimerApp

app = TimerApp(tenant="shop", name="web")
reminders: list[str] = []


@app.on_due()
async def remind(event: DueTimeReached) -> None:
    """Note a reminder."""
    reminders.append(event.timer_id)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Receive events as long as the server runs. At the end, the handlers in progress finish."""
    async with app.running():
        yield


async def add(request: Request) -> JSONResponse:
    """Schedule a reminder, with the client of the app."""
    name = request.path_params["name"]
    outcome = await app.client.timers.schedule("shop", name, due_in=timedelta(seconds=1))
    return JSONResponse({"outcome": outcome.name})


async def show(_: Request) -> JSONResponse:
    """Return the reminders that have fired."""
    return JSONResponse(reminders)


web = Starlette(lifespan=lifespan, routes=[Route("/{name}", add, methods=["POST"]), Route("/", show)])
