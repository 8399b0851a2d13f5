"""The result of a check, and how an unexpected failure of one is reported.

A check tries the thing itself, below a separate folder or with a request that cannot take effect, and leaves nothing
behind. If it cannot try something, it reports a warning, never ok.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from l0gc.errors import CheckFailedError, L0gcError
from l0gc.formatting import Outcome

OK: Final = "ok"
WARNING: Final = "warning"
FAILURE: Final = "failure"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's: what was checked, how it is, and the remedy unless it is well.

    `exit_code` is what a failure ends the command with: 6 where the store lacks something, else the error's own.
    """

    name: str
    status: str
    text: str
    remedy: str = ""
    exit_code: int = 6


@dataclass(frozen=True)
class DoctorResult(Outcome):
    """All checks, in the order in which they were made."""

    checks: list[Check]

    @property
    def problem(self) -> CheckFailedError | None:
        """The first failure, with its remedy, as the error that the command ends with."""
        failed = next((c for c in self.checks if c.status == FAILURE), None)
        return (
            None
            if failed is None
            else CheckFailedError(f"{failed.name}: {failed.text}; {failed.remedy}", failed.exit_code)
        )

    def to_json(self) -> dict[str, Any]:
        """The checks, and how many of them are a failure or a warning."""
        found = [c.status for c in self.checks]
        return super().to_json() | {"failures": found.count(FAILURE), "warnings": found.count(WARNING)}


def ok(name: str, text: str) -> Check:
    return Check(name, OK, text)


def warning(name: str, text: str, remedy: str) -> Check:
    return Check(name, WARNING, text, remedy)


def failure(name: str, text: str, remedy: str) -> Check:
    return Check(name, FAILURE, text, remedy)


def guarded(name: str, check: Callable[[], Iterable[Check]], remedy: str) -> list[Check]:
    """The check's lines, or what ended it as a failure with this remedy."""
    try:
        return list(check())
    except L0gcError as e:
        return [Check(name, FAILURE, str(e), remedy, e.exit_code)]
