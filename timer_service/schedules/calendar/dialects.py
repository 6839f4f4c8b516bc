"""Cron expressions of other programs: what to write here for the same times. Pure: texts in upper case to advice.

An advised expression must mean the same as in the other program. So weekdays of Quartz, which are 1 (Sunday) to 7, are
translated to names. Advice for a distance says the distance, so that a reader sees whether it is meant.
"""

import re
from collections.abc import Callable

IsValid = Callable[[str], bool]

WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_NAMES = "@yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"
_EVERY = "a distance is the field `every` instead of `cron`"
_CALENDAR = "write the field `calendar` instead of `cron`, such as 2 `weeks` from an anchor, or five fields"
_NO_EVERY = "`@every` is not supported; write the field `every` instead of `cron`"
_STEP = "a step counts within the field, which has {} values; to fire every {{0}} {}, write `{}`: {}"
_EXPRESSIONS = (  # whole expressions, and the remedy with the groups of the form
    (r"@EVERY (?=\d)((?:\d+H)?(?:\d+M)?(?:\d+S)?)", f"{_NO_EVERY}: PT{{}}"),
    (r"(?:RATE ?\( ?|EVERY )?(\d+) ?([SMH])(?:ECOND|INUTE|OUR)S? ?\)?", f"{_EVERY}; write PT{{}}{{}}"),
    (
        r"(?:RATE ?\( ?|EVERY )?(\d+) ?(D|W)(?:AY|EEK)S? ?\)?",
        f"{_EVERY}; write P{{0}}{{1}}, or `calendar` for a time of day",
    ),
    (r"@REBOOT\b.*", "`@reboot` is not supported; write the times at which the schedule fires instead"),
    (r"@EVERY\b.*", f"{_NO_EVERY}, such as PT1H30M"),
    (r"@NOON\b.*", "`@noon` is not supported; write `0 12 * * *` instead"),
    (r"@.*", f"this name is not known; write {_NAMES} or five fields"),
    (r"(CRON_)?TZ=.*|.* [A-Z]{4,}/[A-Z_/]+", "the expression names a zone; write the field `zone` instead"),
    (
        r"(MINUTE|HOUR|DAI|WEEK|MONTH|QUARTER|YEAR|(SEMI)?ANNUAL)LY|MIDNIGHT",
        f"names begin with `@`: {_NAMES}. `@weekly` is Sunday, but `weekly` of systemd is `0 0 * * MON`",
    ),
    (r"AT ?\(.*", "`at(...)` is one instant; schedule a timer instead"),
    (r".* /.*", "the expression has a command; leave it out, and its user, and write five fields"),
    (r"P\d+[YM].*|R\d*/.*|.*\b(FREQ|INTERVAL)=.*", _CALENDAR),
    (r"P[\dT].*|(\d+(\.\d+)?(MS|S|M|H|D|W))+|RATE ?\(.*", f"{_EVERY}, such as PT5M for five minutes"),
    (
        r".*(\d:\d|\*:|\.\.).*|EVERY .*",
        "words, times with `:` and ranges with `..` are not supported; Mon..Fri at 09:30 is `30 9 * * MON-FRI`",
    ),
)
_FIELDS = (  # `name: field`, and the remedy
    (r".*: (.*,)?H([,/(].*)?", "`H` of Jenkins is not supported; write a number, and `jitter` to spread schedules"),
    (r".*~.*", "a random value (`~`) is not supported; write a number, and `jitter` to spread schedules"),
    (r".*\?.*", "`?` is not supported; write `*` for every value, or the values"),
    (r".*/0(?!\d).*", "a step is at least 1; write `*` for every value, or `*/2` for every second one"),
    (
        r"day of month: (.*,)?L[W\d-]*/.*",
        "`L` and `LW` have no step; days before the last one are `L-3` or `LW-1`",
    ),
    (r"day of month: .*L-\d+W.*", "the weekday nearest to `L-3` is not supported; write other days"),
    (r"day of week: L", "`L` needs a day; write `6` for Saturday, or `6L` for the last Saturday of the month"),
    (
        r"day of week: (.*,)?(?!SUN|0)\w+-(SUN|0)(?!\d).*",
        "write 7 for Sunday at the end of a range, and numbers, such as `5-7` for FRI-SUN",
    ),
    (r"day of week: .*[A-Z]{3}L.*", "before `L`, write a number instead of a name: the last Friday is `5L`"),
    (r"second: .*/(6[1-9]|[7-9]\d|\d{3,})\b.*", _STEP.format(60, "seconds", "every", "PT{0}S")),
    (r"minute: .*/(6[1-9]|[7-9]\d|\d{3,})\b.*", _STEP.format(60, "minutes", "every", "PT{0}M")),
    (r"hour: .*/(2[5-9]|[3-9]\d|\d{3,})\b.*", _STEP.format(24, "hours", "every", "PT{0}H")),
    (r"day of month: .*/(3[2-9]|[4-9]\d|\d{3,})\b.*", _STEP.format(31, "days", "calendar", "{0} `days`")),
    (r"month: .*/(1[3-9]|[2-9]\d|\d{3,})\b.*", _STEP.format(12, "months", "calendar", "{0} `months`")),
    (r"day of week: .*/([89]|\d{2,})\b.*", _STEP.format(7, "days", "calendar", "{0} `days`")),
    (
        r"day of week: (.*,)?\w+/.*",
        "programs differ in whether such steps reach Sunday; write the last day too, such as `1-5/2`",
    ),
)
_QUARTZ_DAYS = re.compile(r"(?P<first>\w+?)(-(?P<last>\w+?))?(/(?P<step>[1-9]\d*))?(?P<rest>L|#[1-5])?")
_QUARTZ = "`?`, years and `cron(...)` are not supported; "
_COUNT = "Quartz and AWS count weekdays from 1 (Sunday)"
_FIVE, _SIX, _SEVEN = 5, 6, 7
_QUOTED = 20


def advise(cron: str, is_valid: IsValid) -> str | None:
    """Return what to write instead of an expression that is certainly of another program; None if it is not."""
    return _find(_EXPRESSIONS, cron) or _advise_quartz(cron, is_valid)


def advise_order(cron: str, is_valid: IsValid) -> str | None:
    """Return what to write instead of an invalid expression of six fields whose last one is a second or a year."""
    *five, last = cron.split()
    if len(five) != _FIVE or not is_valid(" ".join(five)):
        return None
    if re.fullmatch(r"\*|(19|20)\d\d\b.*", last):
        return f"the first of six fields is the second, and there is no year; {_with_year(' '.join(five), last)}"
    with_second = " ".join([last, *five])
    return f"the first of six fields is the second; write `{with_second}`" if is_valid(with_second) else None


def advise_field(name: str, field: str) -> str | None:
    """Return what to write instead of a field that is of another program, or that hardly means what it says."""
    return _find(_FIELDS, f"{name}: {field}")


def _find(remedies: tuple[tuple[str, str], ...], text: str) -> str | None:
    """Return the first remedy whose form is the whole text, or None."""
    for form, remedy in remedies:
        if found := re.fullmatch(form, text):
            return remedy.format(*((group or "")[:_QUOTED] for group in found.groups()))
    return None


def _advise_quartz(cron: str, is_valid: IsValid) -> str | None:
    """Return what to write instead of an expression of Quartz or AWS, or None if it is of neither."""
    plain = re.sub(r"^CRON ?\((.*)\)$", r"\1", cron)
    fields = plain.split()
    if len(fields) == _SIX and (plain != cron or "?" in (fields[2], fields[4])):
        fields = ["0", *fields]
    elif len(fields) in (_FIVE, _SIX) and "?" in (fields[-3], fields[-1]):
        fields = [*["0"] * (_SIX - len(fields)), *fields, "*"]
    if len(fields) != _SEVEN:
        return None if plain == cron else "leave out `cron(...)` and write five fields"
    second, minute, hour, day, month, weekday, year = fields
    days = _weekdays(weekday)
    translated = f"{minute} {hour} {day.replace('?', '*')} {month} {days}"
    if second != "0":
        translated = f"{second} {translated}"
    if days is None or not is_valid(translated):
        return f"{_QUARTZ}write `*` instead of `?`, and weekdays as names, because {_COUNT}"
    why = "" if days == "*" else f"{_COUNT}, so for their times "
    return f"{_QUARTZ}{why}{_with_year(translated, year)}"


def _with_year(cron: str, year: str) -> str:
    """Return the advice to write an expression, without its year."""
    return f"write `{cron}`" if year == "*" else f"write `{cron}`, with `startAt` and `endAt` for the year {year[:9]}"


def _weekdays(field: str) -> str | None:
    """Return the field day of week here that means the same as a field of Quartz, or None if that is not valid."""
    if field in {"*", "?"}:
        return "*"
    numbers = {name: number for number, day in enumerate(WEEKDAYS) for name in (day, str(number + 1))}
    days = list[str]()
    for term in field.replace("*", "1-7").split(","):
        found = _QUARTZ_DAYS.fullmatch("7" if term == "L" else term)
        first = found and numbers.get(found["first"])
        last = found and numbers.get(found["last"] or ("7" if found["step"] else found["first"]))
        if found is None or first is None or last is None:
            return None
        span = range(first, last + 1 if first <= last else last + 1 + len(WEEKDAYS), int(found["step"] or 1))
        rest = found["rest"] or ""
        days += [f"{day % 7}L" if rest == "L" else f"{WEEKDAYS[day % 7]}{rest}" for day in span]
    return ",".join(dict.fromkeys(days))
