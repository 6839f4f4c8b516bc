"""How the end of a workflow function is reported. Pure."""

from timer_service.worker.errors import StepFailed, describe_error, leaves_of
from timer_service.worker.report import dump, error_view
from timer_service.worker.values import Finished, write_result


def end_of_function(finished: Finished) -> str:
    """Return the `then` of the last report, as JSON."""
    if finished.error is None:
        try:
            return f'{{"action":"complete","result":{write_result(finished.result, "the result of the workflow")}}}'
        except ValueError as error:
            return dump({"action": "fail", "error": error_view(describe_error(error))})
    step = _failed_step(finished.error)
    named = {} if step is None else {"step": step}
    return dump({"action": "fail", "error": error_view(describe_error(finished.error)), **named})


def _failed_step(error: BaseException) -> str | None:
    """Return the key of the step whose failure ended the function, also if a task group has wrapped it."""
    leaves = list(leaves_of(error))
    failed = [leaf.key for leaf in leaves if isinstance(leaf, StepFailed)]
    return failed[0] if len(failed) == len(leaves) else None
