"""Cron expressions of other programs: what to write here for the same times. Pure: texts in upper case to advice.

An advised expression must mean the same as in the other program. So weekdays of Quartz, which are 1 (Sunday) to 7, are
translated to names.
"""

import re
from collections.abc import Callable

IsValid = Callable[[str], bool]

WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_NAMES = "`@yearly`, `@annually`, `@monthly`, `@weekly`, `@daily`, `@midnight`, `@hourly`"
_UNITS = {"SECOND": "PT{}S", "MINUTE": "PT{}M", "HOUR": "PT{}H", "DAY": "P{}D", "WEEK": "P{}W"}
_DISTANCE = re.compile(r"(?:RATE ?\( ?|EVERY )(\d{1,9}) ?(SECOND|MINUTE|HOUR|DAY|WEEK)S? ?\)?")
_GO_DISTANCE = re.compile(r"@EVERY (?=\d)(\d{1,9}H)?(\d{1,9}M)?(\d{1,9}S)?")
_FORMS = (  # whole expressions, and the remedy
    (r"@REBOOT\b.*", "`@reboot` is not supported; write the times at which the schedule fires instead"),
    (r"@EVERY\b.*", "`@every` is not supported; write the field `every` instead of `cron`, such as PT1H30M"),
    (r"@NOON\b.*", "`@noon` is not supported; write `0 12 * * *` instead"),
    (r"@.*", f"this name is not known; write {_NAMES.replace('`', '')} or five fields"),
    (r"(CRON_)?TZ=.*", "the expression names a zone; write the field `zone` instead"),
    (r"(YEARLY|ANNUALLY|MONTHLY|WEEKLY|DAILY|MIDNIGHT|HOURLY)", f"names begin with `@`; write one of {_NAMES}"),
    (r"AT ?\(.*", "`at(...)` is one instant; schedule a timer instead"),
    (r"(RATE ?\(|EVERY ).*", "a distance is the field `every` instead of `cron`, such as PT5M for five minutes"),
    (r"P[\dT].*|(\d+(\.\d+)?(MS|S|M|H|D|W))+", "a distance is the field `every` instead of `cron`, such as PT5M"),
    (
        r"R\d*/.*|.*\b(FREQ|INTERVAL)=.*",
        "write the field `calendar` instead of `cron`, or five fields",
    ),
    (r".*(\d:\d|\.\.).*", "times such as 09:30 are not supported; write the minute and the hour: `30 9 * * *`"),
)
_HINTS = (  # fields: the name, the form, and the remedy
    ("", r"(.*,)?H([,/(].*)?", "`H` of Jenkins is not supported; write a number, and `jitter` to spread schedules"),
    ("", r".*~.*", "a random value (`~`) is not supported; write a number, and `jitter` to spread schedules"),
    ("", r".*\?.*", "`?` is not supported; write `*` instead"),
    ("", r".*/0(?!\d).*", "a step is at least 1; write `*` for every value, or `*/2` for every second one"),
    (
        "day of month",
        r"(.*,)?L[W\d-]*/.*",
        "`L` and `LW` have no step; days before the last one are `L-3` or `LW-1`",
    ),
    (
        "day of month",
        r".*L-\d+W.*",
        "the weekday nearest to `L-3` is not supported; write other days",
    ),
    ("day of week", r"L", "`L` needs a day; write `6` for Saturday, or `6L` for the last Saturday of the month"),
    (
        "day of week",
        r"(.*,)?(?!SUN|0)\w+-(SUN|0)(?!\d).*",
        "write 7 for Sunday at the end of a range, and numbers, such as `5-7` for FRI-SUN",
    ),
    ("day of week", r".*[A-Z]{3}L.*", "write the day before `L` as a number, such as `5L` for the last Friday"),
)
_STEPS = {  # how many values a field has, and what fires every so many of its units
    "second": (60, "write `every`: PT{}S"),
    "minute": (60, "write `every`: PT{}M"),
    "hour": (24, "write `every`: PT{}H"),
    "day of month": (31, "write `calendar`: every {} `days`"),
    "month": (12, "write `calendar`: every {} `months`"),
    "day of week": (7, "write `calendar`: every {} `days`"),
}
_STEP = re.compile(r"/(\d+)(?!\d)")
_QUARTZ_DAY = re.compile(r"(?P<first>\w+)(-(?P<last>\w+))?(/(?P<step>[1-9]\d*))?")
_FIVE, _SIX, _SEVEN = 5, 6, 7
_WEEK = 7


def advise(cron: str, is_valid: IsValid) -> str | None:
    """Return what to write instead of an expression that is certainly of another program; None if it is not."""
    if found := _GO_DISTANCE.fullmatch(cron):
        distance = "".join(filter(None, found.groups()))
        return f"`@every` is not supported; write the field `every` instead of `cron`: PT{distance}"
    if found := _DISTANCE.fullmatch(cron):
        return f"a distance is the field `every` instead of `cron`; write {_UNITS[found[2]].format(found[1])}"
    if found := re.fullmatch(r"CRON ?\((.*)\)", cron):
        fields = found[1].split()
        if len(fields) == _SIX:
            return _same("`cron(...)` is of AWS", _from_quartz(["0", *fields], is_valid), fields[-1])
        return "leave out `cron(...)` and write five fields"
    for form, remedy in _FORMS:
        if re.fullmatch(form, cron):
            return remedy
    fields = cron.split()
    if len(fields) == _SEVEN:
        return _same("the expression has seven fields, as in Quartz", _from_quartz(fields, is_valid), fields[-1])
    if len(fields) == _SIX and "?" in (fields[2], fields[4]):
        return _same("the expression ends with a year, as in AWS", _from_quartz(["0", *fields], is_valid), fields[-1])
    if len(fields) in (_FIVE, _SIX) and "?" in (fields[-3], fields[-1]):
        quartz = fields if len(fields) == _SIX else ["0", *fields]
        return _same("`?` is not supported", _from_quartz([*quartz, "*"], is_valid), "*")
    return None


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
    for only_in, form, remedy in _HINTS:
        if only_in in ("", name) and re.fullmatch(form, field):
            return remedy
    count, remedy = _STEPS[name]
    for step in _STEP.findall(field):
        if len(step) > len(str(count)) or int(step) > count:
            return f"a step counts within the field, which has {count} values; {remedy.format(step[:9])}"
    return None


def _same(what: str, translated: str | None, year: str) -> str:
    """Return the advice to write an expression that was translated from Quartz or AWS; None: it could not be."""
    if translated is None:
        return f"{what}; write `*` instead of `?`, and weekdays as names: Quartz and AWS count them from 1 (Sunday)"
    *_, days = translated.split()
    counts = "" if days == "*" else ". Quartz and AWS count weekdays from 1 (Sunday); else write other names of days"
    return f"{what}; {_with_year(translated, year)}{counts}"


def _with_year(cron: str, year: str) -> str:
    """Return the advice to write an expression, without its year."""
    return f"write `{cron}`" if year == "*" else f"write `{cron}`, with `startAt` and `endAt` for the year {year[:9]}"


def _from_quartz(fields: list[str], is_valid: IsValid) -> str | None:
    """Return the expression here that means the same as seven fields of Quartz, or None if there is none."""
    second, minute, hour, day, month, weekday, _ = fields
    days = _weekdays(weekday)
    if days is None:
        return None
    translated = [minute, hour, "*" if day == "?" else day, month, days]
    if second != "0":
        translated.insert(0, second)
    cron = " ".join(translated)
    return cron if is_valid(cron) else None


def _weekdays(field: str) -> str | None:
    """Return the field day of week here that means the same as a field of Quartz, or None if that is not valid."""
    if field in {"*", "?"}:
        return "*"
    special, plain = list[str](), set[int]()
    for term in field.split(","):
        if found := re.fullmatch(r"(\w+)#([1-5])", term):
            number = _number(found[1])
            special.append("" if number is None else f"{WEEKDAYS[number]}#{found[2]}")
        elif term != "L" and (found := re.fullmatch(r"(\w+)L", term)):
            number = _number(found[1])
            special.append("" if number is None else f"{number}L")
        elif (days := _days("7" if term == "L" else term)) is not None:
            plain |= days
        else:
            return None
    if "" in special:
        return None
    return ",".join([*(WEEKDAYS[day] for day in sorted(plain)), *special])


def _days(term: str) -> set[int] | None:
    """Return the weekdays of a value, a range that may go over Saturday, or steps, with 0 for Sunday."""
    found = _QUARTZ_DAY.fullmatch(term.replace("*", "1-7", 1))
    if found is None:
        return None
    first, last = _number(found["first"]), _number(found["last"] or found["first"])
    if first is None or last is None:
        return None
    if found["step"] and not found["last"]:
        last = _WEEK - 1
    length = (last - first) % _WEEK + 1
    return {(first + passed) % _WEEK for passed in range(0, length, int(found["step"] or 1))}


def _number(day: str) -> int | None:
    """Return the number of a weekday of Quartz as it is here: 0 for Sunday; None if it is no weekday."""
    if day in WEEKDAYS:
        return WEEKDAYS.index(day)
    return int(day) - 1 if re.fullmatch("[1-7]", day) else None
