"""How the output of a tutorial is compared with its page."""

from tests.harness.tutorial import is_shown


def test_the_output_is_that_of_the_page() -> None:
    """Each line of the page must be a line of the output. Text that the page leaves out can be anything."""
    printed = "first\n2027-01-01 INFO the event (1) at 127.0.0.1:20000\nlast  \n"
    for shown in ("first\n… INFO the event (1) at …\n…\nlast\n", "last\n", "… INFO …"):
        assert is_shown(shown, printed), shown
    for shown in ("first\nsecond\n", "INFO …", "… ERROR …", "… the event 1 …"):
        assert not is_shown(shown, printed), shown
