"""The files that travel with the package: migrations and contracts."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def bundled(folder: str) -> Path:
    """Return a shipped folder: inside an installed package, or in the repository for an editable install."""
    installed = _PACKAGE / "_shipped" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder
