"""After a step of gc failed: what still runs, and what the run ends with."""

from __future__ import annotations

import itertools

import pytest

from l0gc import errors
from l0gc.collect.gc_steps import COMPUTE, STEPS, SWEEP, WORST, is_final, is_left_out, worst
from l0gc.errors import BucketNotFoundError, CorruptObjectError, L0gcError, NotInitialisedError, PausedError, UsageError


def test_nothing_is_swept_unless_m_was_computed_in_this_run() -> None:
    for failed in itertools.chain.from_iterable(itertools.combinations(STEPS[:3], n) for n in range(4)):
        assert is_left_out(SWEEP, failed) == (COMPUTE in failed)
        assert not any(is_left_out(step, failed) for step in STEPS[:3])


@pytest.mark.parametrize("kind", [UsageError, NotInitialisedError, BucketNotFoundError])
def test_what_no_step_can_work_with_ends_the_run(kind: type[L0gcError]) -> None:
    assert is_final(kind("no"))


@pytest.mark.parametrize(
    "kind", [CorruptObjectError, PausedError, errors.StoreUnreachableError, errors.PartialFailureError]
)
def test_what_concerns_one_step_does_not_keep_others_from_their_work(kind: type[L0gcError]) -> None:
    assert not is_final(kind("no"))


def test_the_worst_code_counts_and_every_code_has_its_place() -> None:
    assert worst([]) == worst([0, 0]) == 0
    assert worst([3, 0, 1]) == 1
    assert worst([1, 4, 6, 3]) == 4
    assert worst([4, 130]) == 130
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, L0gcError)]
    assert {k.exit_code for k in kinds} <= set(WORST)
