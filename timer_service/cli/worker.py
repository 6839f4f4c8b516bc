"""`timer-service worker`: executes workflows."""

import asyncio
import sys
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from timer_service.cli.connection import Server, find_target
from timer_service.cli.output import one_line
from timer_service.cli.parameters import Tenant, read_duration, read_identifier
from timer_service.cli.process import collect_rarely, run_async, run_code_of_users
from timer_service.logs import configure_logs
from timer_service.worker import Worker, WorkflowFunction

_SECOND_SIGNAL = "ended by a second signal; the workflows in progress continue when their leases end"


def read_workflow(text: str) -> WorkflowFunction[Any, Any]:
    """Return the workflow that `module:name` names. Raises `BadParameter` if there is none."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise typer.BadParameter(f"{text!r} must be module:workflow, such as orders:order.")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"{text!r}: there is no module {error.name!r} in {folder}.") from error
    found = getattr(module, name, None)
    if not isinstance(found, WorkflowFunction):
        raise typer.BadParameter(f"{text!r}: {name} is not a function with the decorator @workflow.")
    return found


Workflows = Annotated[
    list[Any],  # of `WorkflowFunction`, which typer cannot name
    typer.Argument(parser=read_workflow, metavar="MODULE:WORKFLOW", help="The workflows to execute."),
]
Queue = Annotated[str, typer.Option(metavar="QUEUE", help="The queue to take workflows from.")]
Slots = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Execute at most N workflows at a time.")]
WorkerName = Annotated[
    str | None, typer.Option(metavar="NAME", parser=read_identifier, help="The name in `workflows workers`.")
]
Lease = Annotated[
    timedelta | None,
    typer.Option(
        metavar="DURATION",
        parser=read_duration,
        help="If this process dies, its workflows continue elsewhere after so long (10s to 10m). Default: 30s.",
    ),
]


def worker(
    tenant: Tenant,
    workflows: Workflows,
    queue: Queue = "default",
    slots: Slots = 100,
    name: WorkerName = None,
    lease: Lease = None,
    server: Server = None,
) -> None:
    """Execute workflows until SIGTERM or Ctrl-C."""
    target = find_target(server)
    options = target.options() | ({} if lease is None else {"lease": lease})
    try:
        executor = Worker(
            target.url,
            tenant=tenant,
            workflows=workflows,
            queue=queue,
            slots=slots,
            name=name,
            **options,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    types = ", ".join(each.type for each in workflows)
    notice = f"Executing workflows of tenant {tenant} at {target.broker}: {types}. Stop with Ctrl-C."
    typer.echo(one_line(notice), err=True)
    configure_logs(target.config)
    collect_rarely()
    try:
        run_async(run_code_of_users(executor.run()))
    except asyncio.CancelledError:
        sys.exit(f"timer-service: {_SECOND_SIGNAL}")
