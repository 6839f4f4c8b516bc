"""What was measured: the runs of scenarios with their figures, in one JSON file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Result:
    """The figures and the problems of one run. The name of each figure ends with its unit."""

    figures: Mapping[str, float] = field(default_factory=dict)
    problems: Sequence[str] = ()
    """The benchmark fails if there is a problem."""


class Run(NamedTuple):
    """A scenario and the setting in which it runs. Runs that are equal can be compared."""

    scenario: str
    store: str
    sync: str
    """When the broker writes to the disk: `always` before it acknowledges a message, or its `default`."""
    size: int
    instances: int = 1
    broker: str = "nats"


class Record(NamedTuple):
    """A run that was measured."""

    run: Run
    result: Result
    at: str
    revision: str


@dataclass(frozen=True)
class Benchmark:
    """All that was measured on one machine."""

    setting: Mapping[str, str]
    records: Sequence[Record] = ()

    @property
    def problems(self) -> list[str]:
        """All problems, each with its scenario."""
        return [f"{each.run.scenario}: {problem}" for each in self.records for problem in each.result.problems]

    def with_record(self, record: Record) -> "Benchmark":
        return Benchmark(self.setting, [*self.records, record])


def to_json(benchmark: Benchmark) -> str:
    records = [
        {**each.run._asdict(), "at": each.at, "revision": each.revision, **asdict(each.result)}
        for each in benchmark.records
    ]
    return json.dumps({"setting": benchmark.setting, "records": records}, indent=1) + "\n"


def from_json(text: str) -> Benchmark:
    content = json.loads(text)
    return Benchmark(content["setting"], [_record(each) for each in content["records"]])


def read(file: Path) -> Benchmark:
    return from_json(file.read_text("utf-8"))


def write(file: Path, benchmark: Benchmark) -> None:
    """Write the file in one step, so that an interrupted benchmark leaves a whole file."""
    new = file.with_suffix(".new")
    new.write_text(to_json(benchmark), "utf-8")
    new.replace(file)


def _record(fields: Mapping[str, Any]) -> Record:
    run = Run(**{name: fields[name] for name in Run._fields if name in fields})  # older files name no broker
    result = Result(fields["figures"], fields["problems"])
    return Record(run, result, fields["at"], fields["revision"])
