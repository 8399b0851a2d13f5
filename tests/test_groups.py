"""`cluster.topics`: the confirmed effect is the effect of the call. `cluster.runs`: which run deleted a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from l0gc import api
from l0gc.api.groups import Topics
from l0gc.errors import NotFoundError, ProtocolError
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.topics import Alteration
from tests.support.cli import opens
from tests.support.l0_buckets import name_of
from tests.support.memory_store import another_process, memory_cluster, publish_m

A = {"fields": [{"name": "a", "type": "int"}]}
A_AND_B = {"fields": [*A["fields"], {"name": "b", "type": "int"}]}
A_AND_C = {"fields": [*A["fields"], {"name": "c", "type": "int"}]}


class Confirmed:
    """Two topics, and a change by another process while a call waits for its confirmation."""

    def __init__(self, meanwhile: Callable[[Topics], object]) -> None:
        self.cluster = memory_cluster()
        self.topics = Topics(lambda: self.cluster)
        for name in ("events", "clicks"):
            self.topics.create(name, 1, retention_ms=5, value_schema=A)
        self._meanwhile = meanwhile
        self.effects: list[Any] = []

    def confirm(self, effect: object) -> None:
        self.effects.append(effect)
        other = another_process(self.cluster)
        self._meanwhile(Topics(lambda: other))

    def state(self) -> ControllerState:
        return another_process(self.cluster).controller.snapshot()


def created_again(topics: Topics) -> None:
    topics.delete("events")
    topics.create("events", 1)


REFUSED: dict[str, tuple[Callable[[Topics], object], str]] = {
    "its schema": (lambda topics: topics.alter("events", value_schema=A_AND_B), "topic 'events' was altered"),
    "its retention": (lambda topics: topics.alter("events", retention_ms=9), "topic 'events' was altered"),
    "the default": (
        lambda topics: topics.alter_defaults(retention_bytes=1),
        "the cluster's default retention was altered",
    ),
}


@pytest.mark.parametrize("change", REFUSED)
def test_an_alteration_is_refused_if_its_topic_changed_since_the_confirmation(change: str) -> None:
    meanwhile, message = REFUSED[change]
    confirmed = Confirmed(meanwhile)
    with pytest.raises(ProtocolError, match=f"^{message} after this was confirmed: nothing was done"):
        confirmed.topics.alter("events", retention_ms=1, value_schema=A_AND_C, confirm=confirmed.confirm)
    topic = confirmed.state().topic("events")
    assert topic.retention_ms in (5, 9)
    assert topic.value_schema is not None
    assert "c" not in [c.name for c in topic.value_schema.columns]


def test_an_alteration_is_confirmed_by_its_effect_and_ignores_other_topics() -> None:
    confirmed = Confirmed(lambda topics: topics.alter("clicks", retention_ms=9, value_schema=A_AND_B))
    wider = {"fields": [{"name": "a", "type": "string"}]}
    altered = confirmed.topics.alter("events", value_schema=wider, confirm=confirmed.confirm)
    (effect,) = confirmed.effects
    assert isinstance(effect, Alteration)
    assert effect.changes == altered.changes == ["replaces a (int) by string"]
    assert effect.loses_columns
    assert not Confirmed(lambda topics: None).topics.alter("events", retention_ms=5).altered


DEFAULTS: dict[str, tuple[Callable[[Topics], object], str]] = {
    "a topic": (lambda topics: topics.alter("clicks", retention_ms=None), "topic 'clicks'"),
    "a new topic": (lambda topics: topics.create("new", 1), "topic 'new'"),
    "the default": (lambda topics: topics.alter_defaults(retention_ms=7), "the cluster's default retention"),
}


@pytest.mark.parametrize("change", DEFAULTS)
def test_a_default_is_refused_if_any_topic_changed_since_the_confirmation(change: str) -> None:
    meanwhile, subject = DEFAULTS[change]
    confirmed = Confirmed(meanwhile)
    with pytest.raises(ProtocolError, match=f"^{subject} was altered after this was confirmed: nothing was done"):
        confirmed.topics.alter_defaults(retention_bytes=1, confirm=confirmed.confirm)
    assert confirmed.state().retention_bytes == -1


CALLS: dict[str, Callable[[Confirmed], object]] = {
    "delete": lambda c: c.topics.delete("events", confirm=c.confirm),
    "alter": lambda c: c.topics.alter("events", retention_ms=1, confirm=c.confirm),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_confirmation_does_not_cover_a_topic_created_since(call: str) -> None:
    confirmed = Confirmed(created_again)
    with pytest.raises(NotFoundError, match=r"was deleted, and created again .*; the new topic was left as it is"):
        CALLS[call](confirmed)
    assert confirmed.state().topic("events").retention_ms is None


@pytest.mark.parametrize("call", CALLS)
def test_a_caller_that_does_not_confirm_changes_nothing(call: str) -> None:
    def refuse(topics: Topics) -> None:
        raise KeyboardInterrupt

    confirmed = Confirmed(refuse)
    before = confirmed.state().topics
    with pytest.raises(KeyboardInterrupt):
        CALLS[call](confirmed)
    assert confirmed.state().topics == before


def test_a_deleted_key_is_found_in_its_run_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = memory_cluster()
    opens(cluster, monkeypatch)
    for _ in range(3):
        cluster.controller.advance()
    deleted, kept = (cluster.controller.layout().format(0, epoch, name_of(epoch)) for epoch in (1, 3))
    for key in (deleted, kept):
        cluster.store.put(key, b"x")
    publish_m(cluster, 2)
    with api.open("s3://bucket") as opened:
        run = opened.sweep()
        found = opened.runs.find(deleted)
        assert (found.run_id, found.command, found.key, found.status) == (run.run_id, "sweep", deleted, "deleted")
        with pytest.raises(NotFoundError, match=f"no recorded run deleted '{kept}'"):
            opened.runs.find(kept)
