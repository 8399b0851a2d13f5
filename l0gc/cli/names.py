"""The names in a bucket, for a shell that completes them: topics, runs, producers.

A shell waits while it asks, and cannot show an error: so names have a deadline, and after any failure none are offered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import click

from l0gc.cli.options import library, settings_while_typing
from l0gc.streamlog.cluster import Cluster

_DEADLINE_S: Final = 3.0
_MOST: Final = 200
"""Names offered; more do not help."""


class Name(click.ParamType[str]):
    """Any text; the command checks what it may be."""

    name = "text"

    def __init__(self, names: Callable[[Cluster], Iterable[str]]) -> None:
        self._names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """The names that begin so."""
        found: list[str] = []

        def look() -> None:
            try:
                with library(settings_while_typing(ctx)) as cluster:
                    found.extend(self._names(cluster.handles()))
            except Exception:  # noqa: BLE001, S110 - no names; the command itself will say what is wrong
                pass

        thread = threading.Thread(target=look, daemon=True)  # it may outlast the deadline, and must not outlast us
        thread.start()
        thread.join(_DEADLINE_S)
        return [click.shell_completion.CompletionItem(n) for n in sorted(found) if n.startswith(incomplete)][:_MOST]


def _topics(cluster: Cluster) -> Iterable[str]:
    return cluster.controller.snapshot().topics


def _producers(cluster: Cluster) -> Iterable[str]:
    return cluster.controller.snapshot().producers


def _runs(cluster: Cluster) -> Iterable[str]:
    from l0gc.collect.runs import list_runs

    return [r.run_id for r in list_runs(cluster.store, _MOST, parallel=cluster.parallel)[0]]


TOPIC: Final = Name(_topics)
PRODUCER: Final = Name(_producers)
RUN: Final = Name(_runs)
