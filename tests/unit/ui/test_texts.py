"""The texts of the page: times, numbers, values of users and commands."""

import shutil
import subprocess
from typing import Any

import pytest
from markupsafe import Markup

from timer_service.cli.output import one_line
from timer_service.runs.messages import FlawCode
from timer_service.schedules.messages import SkipReason
from timer_service.ui import charts, formats, words
from timer_service.ui.links import command, link
from timer_service.workflows.messages import FailureCode

HOUR = 3_600_000


TEXTS: list[tuple[Any, tuple[Any, ...], str | tuple[str, bool]]] = [
    (formats.distance, (0, 0), "now"),
    (formats.distance, (HOUR * 3 - 1, 0), "in 2 h 59 min"),
    (formats.distance, (-1500, 0), "1 s ago"),
    (formats.distance, (-25, 0), "25 ms ago"),
    (formats.distance, (25, 0), "in 25 ms"),
    (formats.distance, ("1970-01-01T00:00:01.000Z", 0), "in 1 s"),
    (formats.length_of, ("P1DT1H1M1.5S",), "1 d 1 h 1 min 1 s 500 ms"),
    (formats.length_of, ("P2W",), "14 d"),
    (formats.seconds, (0.0042,), "4.2 ms"),
    (formats.seconds, (0.25,), "250 ms"),
    (formats.seconds, (4000,), "4,000 s"),
    (formats.number, (1234567,), "1,234,567"),
    (formats.number, (2.5,), "2.5"),
    (formats.number, (None,), "\N{EN DASH}"),
    (formats.at_least, (999, 1000), "999"),
    (formats.at_least, (1000, 1000), "1,000+"),
    (formats.short, ("x" * 300,), "x" * 300),
    (formats.short, ("x" * 301,), "x" * 300 + "\N{HORIZONTAL ELLIPSIS}"),
    (formats.short_json, ({"a": "日"},), '{"a": "日"}'),
    (formats.short_json, ("x" * 158,), f'"{"x" * 158}"'),
    (formats.short_json, ("x" * 159,), f'"{"x" * 159}\N{HORIZONTAL ELLIPSIS}'),
    (formats.json_text, ({"<b>": "x\u2028"},), ("{\n  &#34;&lt;b&gt;&#34;: &#34;x\\u2028&#34;\n}", False)),
    (link, ("",), "/ui/"),
    (formats.local_time, ("2026-11-23T08:00:00.000Z", "Europe/Berlin"), "2026-11-23 09:00:00"),
    (formats.local_time, ("2026-07-01T23:30:00.500Z", "Asia/Kolkata"), "2026-07-02 05:00:00"),
    (formats.local_time, ("2026-11-23T08:00:00.000Z", "UTC"), ""),
    (formats.local_time, ("2026-11-23T08:00:00.000Z", "Europe/Nowhere"), ""),
    (words.why_failed, ("DEADLINE", None), "its deadline passed"),
    (
        words.why_failed,
        ("STEP_FAILED", {"type": "OSError", "message": "the step a failed: OSError"}),
        "the step a failed: OSError",
    ),
    (words.why_failed, ("STEP_FAILED", {"type": "OSError", "message": ""}), "a step failed"),
    (words.why_failed, ("WORKFLOW_ERROR", {"type": "KeyError", "message": "'x'"}), "KeyError: 'x'"),
    (words.why_failed, ("WORKFLOW_ERROR", {"type": "KeyError"}), "KeyError"),
]


@pytest.mark.parametrize(("write", "arguments", "text"), TEXTS)
def test_texts(write: Any, arguments: tuple[Any, ...], text: str | tuple[str, bool]) -> None:
    """Distances have their two largest units, lengths all of them, and numbers a separator."""
    assert write(*arguments) == text


def test_visible() -> None:
    """Invisible characters and changes of the direction of writing are escaped, but not in markup."""
    assert formats.visible("a\u202eb\u200bc\nd") == "a\\u202eb\\u200bc\\nd"
    assert formats.visible("Käse 日本") == "Käse 日本"
    assert formats.visible(Markup("<b>\n</b>")) == Markup("<b>\n</b>")


@pytest.mark.parametrize("hidden", "\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\ufe00\ufe0f\uffa0\U000e0100")
def test_fillers(hidden: str) -> None:
    """A character that cannot be seen is escaped, also if it counts as printable: an id would look like another one."""
    escaped = hidden.encode("unicode_escape").decode()
    assert formats.visible(f"call-1{hidden}") == one_line(f"call-1{hidden}") == f"call-1{escaped}"
    assert command("timers", "get", "acme", f"call-1{hidden}").endswith(f"$'call-1\\U{ord(hidden):08x}'")


HOSTILE = ["call 1", "-rf", "it's $HOME `id` \\ \"", "a\u202eb\u00a0'\\c", "日本", "*"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_command_for_a_shell(text: str) -> None:
    """A shell passes each argument of a command unchanged, whatever it contains."""
    words = command("timers", "retry", "acme", text).removeprefix("timer-service timers retry ")
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    arguments = done.stdout.decode().split("\0")[:-1]
    assert [each for each in arguments if each != "--"] == ["acme", text]
    assert words.isprintable()


def test_options_of_a_command() -> None:
    """Options come last, but before an argument that begins with a dash, which would count as one."""
    assert command("timers", "retry", "acme", failed=True, prefix="a b") == (
        "timer-service timers retry acme --failed --prefix='a b'"
    )
    assert command("timers", "retry", "-rf", failed=True) == "timer-service timers retry --failed -- -rf"


def test_every_code_has_words() -> None:
    """Each code of a rejected run, of a failed workflow and of a skipped slot has words."""
    for code in FlawCode:
        assert words.why_rejected(code)
    for failure in FailureCode:
        assert words.why_failed(failure, None)
    for reason in SkipReason:
        assert words.why_skipped(reason)
    assert [words.why_rejected("NEW"), words.why_failed("NEW", None), words.why_skipped("new")] == ["NEW", "NEW", "new"]


def test_link() -> None:
    """A URL carries any id, and leaves out parameters without a value."""
    assert link("timer", id="a/b?&#\u202e", cursor=None) == "/ui/timer?id=a%2Fb%3F%26%23%E2%80%AE"


def test_bars() -> None:
    """The largest value has the full height. A small one is still visible, and none has no bar."""
    tall, small = charts.bars([1000, None, 0, 1])
    assert (tall.y, tall.height, small.height) == (3, 45, 1.5)
    assert charts.bars([]) == charts.bars([0, None]) == []


def test_lines() -> None:
    """A gap ends a line. One value alone is a short line."""
    assert charts.lines([5, None, 10], 10) == ["0.0,25.0 80.0,25.0", "160.0,3.0 240.0,3.0"]
    assert charts.lines([0, 0], 0) == ["0.0,47 120.0,47 120.0,47 240.0,47"]
    assert charts.highest([1, None], [3]) == 3
