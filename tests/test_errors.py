"""Every error means one of the documented exit codes, and the branches of the tree mean what the contract promises."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import re
from collections.abc import Iterator

import pytest

import l0gc
from l0gc import errors

MORE = {"exit_code": 130, "epoch": 3, "window": (5, 8), "landed": 7}
"""Arguments of the errors that need more than a message."""

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
        errors.UnansweredObjectError: 1,  # work continues without the object, as without a damaged one
        errors.UsageError: 2,
        errors.PartialFailureError: 3,
        errors.SafetyError: 4,
        errors.NotFoundError: 5,
        errors.StoreUnfitError: 6,
    }
    code = next((c for branch, c in branches.items() if branch in error.__mro__), 1)
    assert error.exit_code == code


def test_stale_epoch_and_moved_input_errors_carry_the_remedy() -> None:
    stale = errors.StaleClusterEpochError("stale", epoch=3, window=(5, 8))
    assert (stale.epoch, stale.window) == (3, (5, 8))
    assert errors.InputPositionMovedError("moved", landed=7).landed == 7


def tree(error: type[errors.L0gcError]) -> Iterator[type[errors.L0gcError]]:
    yield error
    for more_special in error.__subclasses__():
        yield from tree(more_special)


def everywhere() -> set[type[errors.L0gcError]]:
    """Return all error classes of the package, wherever they are defined."""
    for module in pkgutil.walk_packages(l0gc.__path__, "l0gc."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {error for error in tree(errors.L0gcError) if error.__module__.startswith("l0gc.")}


def needed(error: type[errors.L0gcError]) -> list[str]:
    """Return what an error's `__init__` takes besides the message."""
    code = getattr(error.__init__, "__code__", None)
    return [] if code is None else list(code.co_varnames[2 : code.co_argcount + code.co_kwonlyargcount])


def test_every_error_is_pickled_whole() -> None:
    for error in sorted(everywhere(), key=lambda c: c.__name__):
        more = {name: MORE[name] for name in needed(error)}
        raised = error("what happened", **more)
        vars(raised)["so_far"] = "half"
        again = pickle.loads(pickle.dumps(raised))
        assert (type(again), str(again), vars(again)) == (error, "what happened", vars(raised))
        assert {name: getattr(again, name) for name in more} == more
        assert again.exit_code == raised.exit_code


def test_every_error_has_all_its_attributes_when_only_its_message_is_known() -> None:
    for error in set(ALL):
        found = errors.rebuilt(error, ("what happened",))
        assert str(found) == "what happened"
        assert all(hasattr(found, name) for name in needed(error)), error
