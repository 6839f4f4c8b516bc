"""Writes the sources of the documentation site into a folder: the settings of the site, and its pages.

The Markdown files keep their places, so that their links work in the site, too. The pages under `docs/reference` are
made from the code.

    python docs/site/stage.py FOLDER
"""

# ruff: noqa: SLF001 - the metrics have no public names and labels

import inspect
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import typer.main
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from typer.cli import get_docs_for_click

from timer_service import cli
from timer_service.client import TimerApp, TimerClient, timer_client
from timer_service.client.outbox import Outbox, OutboxRelay
from timer_service.metrics import Metrics
from timer_service.worker import Context, Worker
from timer_service.worker.testing import SimulatedWorkflow

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
COPIED = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "LICENSE", ".env.example"),
    "tests/promises.md",
    *("docs", "contracts", "deploy", "benchmarks"),
)
CLASSES = {
    "TimerClient": TimerClient,
    "TimerClient.timers": timer_client.Timers,
    "TimerClient.schedules": timer_client.Schedules,
    "TimerClient.workflows": timer_client.Workflows,
    "TimerClient.runs": timer_client.Runs,
    "TimerClient.signals": timer_client.Signals,
    "TimerClient.events": timer_client.Events,
    "TimerClient.dead_letters": timer_client.DeadLetters,
    "TimerApp": TimerApp,
    "Outbox": Outbox,
    "OutboxRelay": OutboxRelay,
    "Worker": Worker,
    "Context": Context,
    "SimulatedWorkflow": SimulatedWorkflow,
}
"""The classes of programs of users."""
START_HERE = "Start here. "
IGNORED = shutil.ignore_patterns("__pycache__", "results", "site")


def main(folder: Path) -> None:
    """Write everything into `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    pages.mkdir(parents=True)
    shutil.copy(SITE / "mkdocs.yml", folder)
    shutil.copy(SITE / "site.css", pages)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, pages / name, ignore=IGNORED)
        else:
            (pages / name).parent.mkdir(exist_ok=True)
            shutil.copy(source, pages / name)
    reference = pages / "docs" / "reference"
    reference.mkdir()
    pages_from_code = {"settings": settings(), "metrics": metrics(), "cli": command_line(), "python": python_classes()}
    for name, lines in pages_from_code.items():
        (reference / f"{name}.md").write_text("\n".join(lines) + "\n", "utf-8")


def settings() -> Iterator[str]:
    """Yield the page of the settings, from `.env.example`."""
    yield "# Settings\n"
    introduction, *blocks = (ROOT / ".env.example").read_text("utf-8").strip().split("\n\n")
    yield _text(introduction.splitlines()).replace("this file to .env", "`.env.example` to `.env`")
    for title, first in (("Start here", True), ("Other settings", False)):
        yield f"\n## {title}\n\n| setting | default | |\n|---|---|---|"
        for block in blocks:
            *lines, assignment = block.splitlines()
            name, _, default = assignment.removeprefix("# ").partition("=")
            text = _text(lines)
            if text.startswith(START_HERE) is first:
                yield _row(f"`{name}`", f"`{default}`" if default else "", text.removeprefix(START_HERE))


def metrics() -> Iterator[str]:
    """Yield the page of the metrics, from their registry."""
    yield "# Metrics\n"
    yield "The metrics at `/metrics`, without those of the process and of Python."
    yield "[Monitor](../operations/monitor.md#metrics) says how to collect them, and [Alerts](../operations/alerts.md)"
    yield "which of them matter.\n"
    yield "| metric | type | labels | |\n|---|---|---|---|"
    registry = CollectorRegistry()
    Metrics(registry)
    metrics = [each for each in registry._collector_to_names if isinstance(each, MetricWrapperBase)]
    for collector in sorted(metrics, key=lambda each: each._name):
        suffix = "_total" if collector._type == "counter" else ""
        labels = ", ".join(f"`{label}`" for label in collector._labelnames)
        yield _row(f"`{collector._name}{suffix}`", collector._type, labels, collector._documentation)


def command_line() -> Iterator[str]:
    """Yield the page of the command line, from its help."""
    command = typer.main.get_command(cli.create_app([*cli.COMMANDS, *cli.GROUPS]))
    name = "timer-service"
    yield get_docs_for_click(
        obj=command, ctx=typer.Context(command, info_name=name), name=name, title="The command line"
    )


def python_classes() -> Iterator[str]:
    """Yield the page of the Python classes, from their signatures and docstrings."""
    yield "# Python\n\nThe classes of `timer_service.client` and `timer_service.worker`, with their docstrings."
    for name, kind in CLASSES.items():
        yield f"\n## {name}\n\n{inspect.getdoc(kind)}"
        for method, member in vars(kind).items():
            function = inspect.unwrap(member.__func__ if isinstance(member, classmethod) else member)
            if inspect.isfunction(function) and not method.startswith("_"):
                signature = textwrap.dedent(inspect.getsource(function).partition('"""')[0]).strip()
                yield f"\n### {name}.{method}\n\n```python\n{signature}\n```\n\n{inspect.getdoc(function)}"


def _text(lines: list[str]) -> str:
    return " ".join(line.removeprefix("# ") for line in lines)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
