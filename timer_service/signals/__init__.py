"""The signals slice: a work signal is a reminder that fires at an instant or when a work item reaches a status."""

from functools import partial

from timer_service.core.service.slice import Slice
from timer_service.signals.batch import COMMANDS
from timer_service.signals.evaluation import Evaluation
from timer_service.signals.firing_store import COUNTED, FIRINGS, TIMED
from timer_service.signals.firing_worker import FiringWorker
from timer_service.signals.handler import handle
from timer_service.signals.messages import Outcome, WorkSignalFailed, WorkSignalFired
from timer_service.signals.queries import QUERIES, SignalView
from timer_service.signals.store import OPEN_SIGNALS, delete_settled

SLICE = Slice(
    name="signals",
    commands=COMMANDS,
    outcomes=Outcome,
    handle=partial(handle, evaluating=True),
    handle_when_off=partial(handle, evaluating=False),
    queries=QUERIES,
    workers={"firings": FiringWorker, "evaluation": Evaluation},
    wakes=("firings", "evaluation"),
    leased=(),
    counted=COUNTED,
    due=(FIRINGS,),
    timed=(TIMED,),
    events=(WorkSignalFired, WorkSignalFailed),
    views={"signal": SignalView},
    usages=(OPEN_SIGNALS,),
    delete_settled=delete_settled,
)
