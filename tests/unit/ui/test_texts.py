"""The texts of the page: times, numbers, values of users and commands."""

import shutil
import subprocess

import pytest
from markupsafe import Markup

from timer_service.cli.output import one_line
from timer_service.ui import charts, formats
from timer_service.ui.links import command, link

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "now"),
        (HOUR * 3 - 1, "in 2 h 59 min"),
        (-1500, "1 s ago"),
        (-25, "25 ms ago"),
        (HOUR * 48, "in 2 d"),
        ("1970-01-01T00:00:01.000Z", "in 1 s"),
    ],
)
def test_distance(at: int | str, text: str) -> None:
    """A distance has its two largest units."""
    assert formats.distance(at, 0) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [("PT15M", "15 min"), ("P1DT1H1M1.5S", "1 d 1 h 1 min 1 s 500 ms"), ("P2W", "14 d"), ("PT0S", "")],
)
def test_length_of(duration: str, text: str) -> None:
    """A duration of a schedule is shown exactly, with all its units."""
    assert formats.length_of(duration) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "\N{EN DASH}"), (0.0042, "4.2 ms"), (0.25, "250 ms"), (1.5, "1.5 s"), (4000, "4,000 s")],
)
def test_seconds(seconds: float | None, text: str) -> None:
    """A short time has a unit that fits."""
    assert formats.seconds(seconds) == text


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


def test_link() -> None:
    """A URL carries any id, and leaves out parameters without a value."""
    assert (
        link("timer", tenant="acme", id="a/b?&#\u202e", cursor=None)
        == "/ui/timer?tenant=acme&id=a%2Fb%3F%26%23%E2%80%AE"
    )
    assert link("") == "/ui/"


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
