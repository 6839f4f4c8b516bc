"""A histogram of values that occur many times at once."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString


class CountedHistogram(Collector):
    """A histogram by table.

    The `Histogram` of the library takes 0.7 µs for each value, also if a thousand values of a batch are equal.
    """

    def __init__(self, registry: CollectorRegistry, name: str, text: str, bounds: Sequence[float]) -> None:
        """`bounds` are the upper bounds of the buckets. The last bucket has none."""
        self._name = name
        self._text = text
        self._bounds = (*bounds, INF)
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(self._bounds))
        registry.register(self)

    def observe(self, table: str, value: float, count: int) -> None:
        """Record that a value occurred `count` times."""
        self._sums[table] += value * count
        self._counts[table][bisect_left(self._bounds, value)] += count

    def collect(self) -> Iterator[Metric]:
        """Return the histogram of each table."""
        family = HistogramMetricFamily(self._name, self._text, labels=["table"])
        bounds: list[str] = list(map(floatToGoString, self._bounds))
        for table, counts in self._counts.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([table], buckets, self._sums[table])
        yield family
