"""How much of a topic a task reads: a share for each core, and only the columns that were named."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StructType

from l0gc.errors import UsageError
from l0gc.integrations.spark import plan
from l0gc.integrations.spark.source import SCHEMA
from l0gc.spark.handles import CORES
from l0gc.streamlog.cluster import Handles
from tests.support.memory_store import topic_in_memory
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import batch_reader, data_source, on, rows_of, table


def filled(partitions: int) -> Handles:
    cluster = topic_in_memory(partitions)
    put(cluster, "events", {p: [b"%d:%04d" % (p, n) for n in range(40)] for p in range(partitions)})
    reconcile(cluster)
    return cluster


@pytest.mark.parametrize(("cores", "tasks"), [("1", 1), ("2", 2), ("3", 3)])
def test_without_a_wish_there_is_a_task_for_each_core(monkeypatch: pytest.MonkeyPatch, cores: str, tasks: int) -> None:
    monkeypatch.setattr(plan, "LEAST_SLICE_BYTES", 1)
    monkeypatch.setenv(CORES, cores)
    with on(filled(6)):
        reader = batch_reader(topic="events")
        planned = reader.partitions()
        assert tasks <= len(planned) <= tasks + 1  # the partitions do not weigh the same
        assert sorted(rows_of(table(reader, planned))) == [
            (p, n, b"%d:%04d" % (p, n)) for p in range(6) for n in range(40)
        ]
        assert len(batch_reader(topic="events", minPartitions="6").partitions()) >= 6


def test_a_core_gets_no_task_for_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORES, "8")
    with on(filled(6)):
        assert len(batch_reader(topic="events").partitions()) == 1


def test_only_the_columns_that_are_named_are_read() -> None:
    named = StructType([SCHEMA["value"], SCHEMA["partition"]])
    assert data_source(topic="events", columns="value, partition,value").schema() == named
    assert data_source(topic="events").schema() == SCHEMA
    with on(filled(2)):
        reader = batch_reader((), named, topic="events", columns="value,partition")
        found = [b for p in reader.partitions() for b in reader.read(p)]
    assert {tuple(b.schema.names) for b in found} == {("value", "partition")}
    assert sum(b.num_rows for b in found) == 80
    assert {v.as_py() for b in found for v in pc.unique(b.column("partition"))} == {0, 1}


@pytest.mark.parametrize("columns", ["value,size", "Value", ","])
def test_columns_that_a_topic_does_not_have_are_refused(columns: str) -> None:
    with pytest.raises(UsageError, match=r"option columns is '.*': name some of key, value, topic"):
        data_source(topic="events", columns=columns).schema()
