# A notebook: Jupyter, VS Code and marimo open it as one, and `python notebook.py` runs its cells. It takes the URL from
# `L0GC_URL`. It needs `pip install '.[iceberg]' polars duckdb` in a checkout of l0gc, and a catalog `lake` in PyIceberg's
# configuration.

# %% [markdown]
# # Readings of sensors
# Create a cluster if it does not exist, and upload records whose fields become columns.

# %%
import json
import os
from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
from pyiceberg.catalog import load_catalog

import l0gc

URL = os.environ["L0GC_URL"]
readings = [json.dumps({"sensor": f"s{n % 7}", "reading": n / 2}).encode() for n in range(100)]
schema = {"properties": {"sensor": {"type": "string"}, "reading": {"type": "number"}}}

# %%
with l0gc.open(os.environ["L0GC_URL"]) as cluster:
    cluster.init(create_bucket=True)
    cluster.topics.create("readings", partitions=4, value_schema=schema)
    uploaded = cluster.upload("readings", readings, key_field="sensor")
print(f"{uploaded.records} records uploaded")

# %% [markdown]
# ## All records
# `read_arrow` returns all records, including the newest. DuckDB reads them batch after batch, so they need not fit into
# memory; Polars holds them in memory.

# %%
with l0gc.open(URL) as cluster:
    frame = pl.DataFrame(cluster.read_arrow("readings", columns=["timestamp", "sensor", "reading"]))
print(frame.group_by("sensor").agg(pl.col("reading").mean()).sort("sensor"))

# %%
with l0gc.open(URL) as cluster:
    recent = cluster.read_arrow("readings", from_time_ms=datetime.now(UTC) - timedelta(hours=1))
    highest = duckdb.sql("SELECT sensor, max(reading) AS highest FROM recent GROUP BY ALL ORDER BY ALL").pl()
print(highest)

# %% [markdown]
# ## The table
# Reconcile lifts records into L1, and a sync adds them to the topic's Iceberg table. A query of a few columns, or of a few
# of many records, reads only these from the table.

# %%
with l0gc.open(URL) as cluster:
    cluster.tables.create("readings", catalog="lake")
    cluster.reconcile(topic="readings")
    cluster.tables.sync("readings")
table = load_catalog("lake").load_table("l0gc.readings")
low = pl.scan_iceberg(table).filter(pl.col("reading") < 3).select("sensor", "reading").collect()
print(low.sort("reading"))

# %%
rows = table.scan(selected_fields=("sensor", "reading")).to_arrow_batch_reader()
by_sensor = duckdb.sql("SELECT sensor, count(*) AS n, sum(reading) AS total FROM rows GROUP BY ALL ORDER BY ALL").pl()
print(by_sensor)

# %% [markdown]
# ## A dry run of a sweep
# Records in L1 are no longer needed in L0. Without `dry_run`, the sweep deletes what M allows.

# %%
with l0gc.open(URL) as cluster:
    cluster.housekeep(barrier=True)
    watermark = cluster.compute_watermark().watermark
    swept = cluster.sweep(dry_run=True)
print(f"M = {watermark}: a sweep would delete {swept.deleted} of {swept.listed} objects, {swept.bytes} bytes")
