"""Topics in Spark's SQL, and errors as a Spark program sees them: the examples of docs/work/spark.md, with `one_spark`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import l0gc
import l0gc.spark
from l0gc.errors import NotFoundError
from l0gc.storage.config import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.weed, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

DOCUMENTS = Path(__file__).parents[2] / "docs/work"
DOCUMENT = DOCUMENTS / "spark.md"
TABLES = DOCUMENTS / "tables.md"
NO_TABLE = "a table of Spark's catalog keeps no options for format l0gc"


@pytest.fixture
def topics(cluster: l0gc.Cluster) -> l0gc.Cluster:
    for topic in ("flights", "copy"):
        cluster.topics.create(topic, partitions=1)
    cluster.upload("flights", [b"a", b"b"])
    return cluster


def test_the_documents_sql_reads_topics(spark: SparkSession, bucket: StoreConfig, topics: l0gc.Cluster) -> None:
    section = DOCUMENT.read_text().partition("\n## SQL\n")[2].partition("\n## ")[0]
    statements = [
        s for block in re.findall(r"```sql\n(.*?)```", section, re.DOTALL) for s in block.split(";") if s.strip()
    ]
    place = f"{bucket.url}', endpointUrl = '{bucket.endpoint_url}"
    try:
        found = [spark.sql(s.replace("s3://bucket/prefix", place)).collect() for s in statements]
    finally:
        spark.sql("DROP TABLE IF EXISTS l0gc")
        spark.sql("DROP VIEW IF EXISTS flights")
    assert [[tuple(row) for row in rows] for rows in found if rows] == [[(0, 1), (0, 0)], [(2,)]]


def test_the_documents_sql_of_a_table_counts_its_users(
    spark: SparkSession, bucket: StoreConfig, topics: l0gc.Cluster, tmp_path: Path
) -> None:
    """Spark's own engine runs it. Iceberg's jar is not available here, so a Derby in memory holds the table's columns."""
    (statement,) = re.findall(r"```sql\n(SELECT get_json.*?)```", TABLES.read_text(), re.DOTALL)
    topics.topics.create("events", partitions=1)
    topics.upload("events", [b'{"user":"ann"}', b'{"user":"bob"}', b'{"user":"ann"}', b"no object"])
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))  # type: ignore[union-attr]
    catalog = "spark.sql.catalog.lake"
    spark.conf.set(catalog, "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog")
    spark.conf.set(f"{catalog}.url", "jdbc:derby:memory:lake;create=true")
    spark.conf.set(f"{catalog}.driver", "org.apache.derby.jdbc.EmbeddedDriver")
    spark.sql("CREATE NAMESPACE lake.l0gc")
    rows = spark.read.format("l0gc").load(url=bucket.url, endpointUrl=bucket.endpoint_url, topic="events")
    rows.select("value").writeTo("lake.l0gc.events").create()
    assert {(row[0], row[1]) for row in spark.sql(statement).collect()} == {("ann", 2), ("bob", 1), (None, 1)}


def test_the_documents_pinned_data_frame_outlives_its_topic(
    spark: SparkSession, bucket: StoreConfig, topics: l0gc.Cluster
) -> None:
    """The frame is read from L0, because the sweep waits for the pin; its driver leaves no pin."""
    (block,) = re.findall(r"```python\n(with l0gc\.spark\.pinned.*?)```", DOCUMENT.read_text(), re.DOTALL)

    def report(flights: DataFrame) -> None:
        assert [(p.level_one, p.in_effect) for p in topics.pins.list()] == [(False, True)]
        topics.topics.delete("flights")
        for _ in range(3):
            topics.advance_epoch()
            topics.housekeep(barrier=True)
        topics.compute_watermark()
        assert topics.sweep().deleted == 0
        topics.vacuum(l1_grace_s=0, orphan_age_s=0)
        for _ in range(2):
            assert sorted(bytes(row.value) for row in flights.select("value").collect()) == [b"a", b"b"]

    place = f"url={bucket.url!r}, endpointUrl={bucket.endpoint_url!r}"
    exec(block.replace("url=URL", place), {"l0gc": l0gc, "spark": spark, "report": report})
    assert topics.pins.list() == []
    topics.advance_epoch()
    topics.compute_watermark()
    assert topics.sweep().deleted == 1


def test_a_table_with_options_is_refused(spark: SparkSession, bucket: StoreConfig, topics: l0gc.Cluster) -> None:
    options = f"url '{bucket.url}', endpointUrl '{bucket.endpoint_url}', topic 'copy'"
    with pytest.raises(Exception, match=NO_TABLE):
        spark.sql(f"CREATE TABLE kept USING l0gc OPTIONS ({options})")
    with pytest.raises(Exception, match=NO_TABLE):
        spark.sql(f"CREATE TABLE kept USING l0gc OPTIONS ({options}) AS SELECT X'00' AS value")
    assert not spark.catalog.tableExists("kept")
    spark.sql("CREATE TABLE bare (value BINARY) USING l0gc")
    try:
        with pytest.raises(Exception, match=NO_TABLE):
            spark.table("bare").collect()
    finally:
        spark.sql("DROP TABLE bare")
    assert list(topics.read("copy")) == []


def test_headers_in_large_types_are_written_and_read(
    spark: SparkSession, bucket: StoreConfig, topics: l0gc.Cluster
) -> None:
    place = {"url": bucket.url, "endpointUrl": bucket.endpoint_url or "", "topic": "copy"}
    rows = spark.sql("SELECT X'61' AS key, X'62' AS value, array(named_struct('key', 'h', 'value', X'63')) AS headers")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        rows.write.format("l0gc").options(**place).mode("append").save()
        found = spark.read.format("l0gc").options(**place, includeHeaders="true").load().select(*rows.columns)
        assert found.collect() == rows.collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_the_error_of_a_stream_ends_with_l0gcs_sentence(
    spark: SparkSession, bucket: StoreConfig, topics: l0gc.Cluster, tmp_path: Path
) -> None:
    place = {"url": bucket.url, "endpointUrl": bucket.endpoint_url or ""}
    stream = spark.readStream.format("l0gc").options(**place, topic="flihgts").load().writeStream
    query = stream.format("l0gc").options(**place, topic="copy", checkpointLocation=str(tmp_path)).start()
    with pytest.raises(NotFoundError, match=r"^topic 'flihgts' does not exist; [^\n]*$"), l0gc.spark.own_errors():
        query.awaitTermination()
