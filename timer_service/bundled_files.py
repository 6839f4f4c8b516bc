"""The files that the package contains besides code: migrations and contracts."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def bundled_folder(folder: str) -> Path:
    """Return the path of a folder: inside an installed package, or in the repository for an editable install."""
    installed = _PACKAGE / "_shipped" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder
