"""Named SQL beside the Python that uses it."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_sql(package: str, file: str) -> dict[str, str]:
    """Read the blocks of a `.sql` file of `package`; each begins with a line `-- name: block`."""
    _, *parts = _NAME.split(files(package).joinpath(file).read_text("utf-8"))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
