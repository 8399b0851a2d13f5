"""Every error means one of the documented exit codes, and the branches of the tree mean what the contract says."""

from __future__ import annotations

import inspect
import re

import pytest

from l0gc import errors

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.L0gcError)]


@pytest.mark.parametrize("error", ALL, ids=lambda c: c.__name__)
def test_every_error_has_a_documented_exit_code(error: type[errors.L0gcError]) -> None:
    documented = {int(n) for n in re.findall(r"\b(\d) [a-z]", (errors.__doc__ or "").partition("Exit codes:")[2])}
    assert documented == {0, 1, 2, 3, 4, 5, 6}
    assert error.exit_code in documented - {0}
    assert error.__doc__


@pytest.mark.parametrize("error", ALL, ids=lambda c: c.__name__)
def test_a_more_special_error_exits_like_its_branch(error: type[errors.L0gcError]) -> None:
    branches = {
        errors.UsageError: 2,
        errors.PartialFailureError: 3,
        errors.SafetyError: 4,
        errors.NotFoundError: 5,
        errors.StoreUnfitError: 6,
    }
    code = next((c for branch, c in branches.items() if branch in error.__mro__), 1)
    assert error.exit_code == code


def test_a_stale_epoch_and_a_moved_input_carry_what_the_caller_needs_to_go_on() -> None:
    stale = errors.StaleClusterEpochError("stale", epoch=3, window=(5, 8))
    assert (stale.epoch, stale.window) == (3, (5, 8))
    assert errors.InputPositionMovedError("moved", landed=7).landed == 7
