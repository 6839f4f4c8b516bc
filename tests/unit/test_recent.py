"""The dictionary of bounded size."""

from timer_service.core.values.recent import MOST, Recent


def test_the_oldest_entry_is_forgotten() -> None:
    """Beyond 20,000 entries, the oldest one is forgotten. An entry that is set again is the newest."""
    recent: Recent[int, str] = Recent()
    for key in range(MOST):
        recent[key] = "first"
    recent[0] = "again"
    recent[MOST] = "new"
    assert (len(recent), recent[0], recent[MOST], 1 in recent, 2 in recent) == (MOST, "again", "new", False, True)
