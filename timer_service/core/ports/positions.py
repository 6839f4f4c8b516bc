"""How a position is stored: in two columns, `<name>_epoch` and `<name>_sequence`."""

from collections.abc import Mapping

from timer_service.core.ports.database import Row
from timer_service.core.values.message import Position


def read_position(row: Row, name: str = "position") -> Position:
    """Return the position that is stored in a row under a name."""
    return Position(row[f"{name}_epoch"], row[f"{name}_sequence"])


def position_columns(position: Position, name: str = "position") -> Mapping[str, int]:
    """Return the values of the columns that `read_position` reads."""
    return {f"{name}_epoch": position.epoch, f"{name}_sequence": position.sequence}
