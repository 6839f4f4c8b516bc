"""The mutants replace parts of the code that are still there. Whether they are found is shown by `make soak-short`."""

import pytest

from tests.simulation import test_history_mutants, test_mutants
from tests.simulation.intake_mutants import Mutate

_MUTANTS: list[Mutate] = [*test_mutants.MUTANTS, *test_history_mutants.MUTANTS]


def test_mutants_fit_the_code() -> None:
    """Each mutant finds what it replaces, so that a new name in the code is noticed before the long simulation runs."""
    misfits = {}
    for mutate in _MUTANTS:
        with pytest.MonkeyPatch.context() as patch:
            try:
                mutate(patch)
            except (AttributeError, KeyError, AssertionError) as error:
                misfits[mutate.__name__] = repr(error)
    assert misfits == {}
