"""The flows of the running service, as its readiness page reports them."""

from collections.abc import Iterator, Mapping

from timer_service.cli.doctor.finding import Finding, Status
from timer_service.cli.healthcheck import no_answer_text
from timer_service.config import Config


def check_page(config: Config, page: Mapping[str, str] | None) -> Iterator[Finding]:
    """Return a finding for each flow on the page. None: no service answers."""
    if page is not None:
        yield from check_readiness(page)
        return
    remedy = "Run doctor on the machine of the service, with its TIMER_HTTP_HOST and TIMER_HTTP_PORT."
    yield Finding("service", Status.NOTE, no_answer_text(config), remedy)


def check_readiness(page: Mapping[str, str]) -> Iterator[Finding]:
    """Check the page of a service that answers."""
    for name, reason in page.items():
        check = "service" if name == "service" else f"flow of {name}"
        if reason == "ok":
            yield Finding(check, Status.OK, "ok")
        elif name == "service":
            yield Finding(check, Status.WARN, reason, "Start it again if it does not start by itself.")
        else:
            yield Finding(check, Status.FAIL, reason, "Fix the part that the reason names.")
