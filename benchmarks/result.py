"""The result of a scenario."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """The figures and the problems of one run. The name of each figure ends with its unit."""

    figures: Mapping[str, float] = field(default_factory=dict)
    problems: Sequence[str] = ()
    """The benchmark fails if there is a problem."""
    samples: Sequence[Mapping[str, float]] = ()
    """Measurements over time, written to the file only."""
