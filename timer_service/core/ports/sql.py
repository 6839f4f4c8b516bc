"""Portable SQL with named parameters, in named blocks of `.sql` files next to the Python code that uses them."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_sql(package: str, file: str) -> dict[str, str]:
    """Return the blocks of a `.sql` file in `package`, by name. A block begins with a line `-- name: block`."""
    _, *parts = _NAME.split(files(package).joinpath(file).read_text("utf-8"))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
