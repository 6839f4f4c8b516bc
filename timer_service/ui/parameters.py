"""The parameters of a request, checked. A wrong one is an error with a text that says what is right."""

import re
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from pydantic_core import PydanticCustomError

from timer_service.core.values.address import IDENTIFIER_PATTERN, TENANT_PATTERN
from timer_service.core.values.instant import parse_instant

_Choice = TypeVar("_Choice", bound=StrEnum)
_LONGEST = 2000
_WITHOUT_OFFSET = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(:\d\d(?:\.\d+)?)?)?", re.ASCII)


class BadParameterError(Exception):
    """A parameter is wrong. The text says what is right."""


class Parameters:
    """The query of a URL. An empty parameter counts as not given, as forms send it."""

    def __init__(self, pairs: Sequence[tuple[str, str]], known: Collection[str]) -> None:
        """Raises `BadParameterError` if a parameter is not known, is given twice, is too long or has a NUL."""
        self._values: Mapping[str, str] = {name: text for name, text in pairs if text}
        names = [name for name, _ in pairs]
        for name, text in pairs:
            if name not in known:
                which = ", ".join(sorted(known)) or "none"
                raise BadParameterError(f"This page has no parameter “{name[:100]}”. Its parameters: {which}.")
            if names.count(name) > 1:
                raise BadParameterError(f"The parameter “{name}” is given more than once.")
            if len(text) > _LONGEST:
                raise BadParameterError(f"“{name}” has more than {_LONGEST:,} characters.")
            if "\0" in text:  # PostgreSQL refuses it
                raise BadParameterError(f"“{name}” has the character NUL, which no name and no id has.")

    def text(self, name: str) -> str | None:
        """Return a parameter as it is."""
        return self._values.get(name)

    @property
    def given(self) -> Mapping[str, str]:
        """All parameters that are given."""
        return self._values

    def tenant(self) -> str | None:
        """Return the tenant."""
        tenant = self.text("tenant")
        if tenant is not None and not re.fullmatch(TENANT_PATTERN, tenant):
            raise BadParameterError("“tenant” must have 1 to 64 letters, digits, “-” and “_”.")
        return tenant

    def needed_tenant(self, list_name: str) -> str:
        """Return the tenant, which must be given. `list_name` says which page leads here."""
        tenant = self.tenant()
        if tenant is None:
            raise BadParameterError(f"This page needs “tenant”. Open it from {list_name}.")
        return tenant

    def identifier(self, name: str) -> str | None:
        """Return an id."""
        text = self.text(name)
        if text is not None and not re.fullmatch(IDENTIFIER_PATTERN, text):
            raise BadParameterError(f"“{name}” must have 1 to 200 characters, and no control characters.")
        return text

    def key(self) -> tuple[str, str]:
        """Return the tenant and the id of one item. Both must be given."""
        tenant, id_ = self.tenant(), self.identifier("id")
        if tenant is None or id_ is None:
            raise BadParameterError("This page needs “tenant” and “id”. Open it from a list.")
        return tenant, id_

    def choice(self, name: str, choices: type[_Choice]) -> _Choice | None:
        """Return one of the values of an enumeration."""
        text = self.text(name)
        try:
            return None if text is None else choices(text)
        except ValueError:
            raise BadParameterError(f"“{name}” must be one of: {', '.join(choices)}.") from None

    def instant(self, name: str) -> int | None:
        """Return an instant in Unix milliseconds. A text without an offset, as of a form, is UTC."""
        text = self.text(name)
        if text is None:
            return None
        local = _WITHOUT_OFFSET.fullmatch(text)
        iso = text if local is None else f"{local[1]}T{local[2] or '00:00'}{local[3] or ':00'}Z"
        try:
            return parse_instant(iso)
        except PydanticCustomError as error:
            raise BadParameterError(f"“{name}” {error.message()}.") from None
