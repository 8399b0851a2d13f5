# A notebook: Jupyter, VS Code and marimo open it as one, and `python notebook.py` runs its cells. It takes the URL from
# `L0GC_URL`. It needs `pip install '.[iceberg]' polars duckdb` in a checkout of l0gc, and a catalog `lake` in PyIceberg's
# configuration.

# %% [markdown]
# # Readings of sensors
# Founds a cluster if there is none, and uploads records whose fields become columns.

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
# ## What is there now
# `read_arrow` has all records, also those that came a moment ago. DuckDB takes them batch after batch, so they need not fit
# the memory; Polars holds them.

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
# ## What is in the table
# Reconcile lifts records into L1, and a sync has the topic's Iceberg table name them. A query that needs a few columns, or a
# few of many records, reads only these there.

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
# ## What a sweep would delete
# What is in L1 is no longer needed in L0. Without `dry_run`, sweep deletes, as far as M allows.

# %%
with l0gc.open(URL) as cluster:
    cluster.housekeep(barrier=True)
    watermark = cluster.compute_watermark().watermark
    swept = cluster.sweep(dry_run=True)
print(f"M = {watermark}: a sweep would delete {swept.deleted} of {swept.listed} objects, {swept.bytes} bytes")
