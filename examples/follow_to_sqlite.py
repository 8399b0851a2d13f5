"""A consumer: counts a topic's records by key in a SQLite database as they land, each record once.

    python follow_to_sqlite.py events counts.db

The counts and the positions in the topic change in one transaction. So the program may be killed at any time, and continues
when it is started again. SIGTERM and Ctrl-C end it. It takes the cluster's URL from `L0GC_URL`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import threading

import l0gc

TABLES = """
CREATE TABLE IF NOT EXISTS topic (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS positions (partition INTEGER PRIMARY KEY, next INTEGER);
CREATE TABLE IF NOT EXISTS counts (key BLOB PRIMARY KEY, records INTEGER);
"""
COUNT = "INSERT INTO counts VALUES (?, 1) ON CONFLICT DO UPDATE SET records = records + 1"
MOVE = "INSERT OR REPLACE INTO positions VALUES (?, ?)"


def count(cluster: l0gc.Cluster, topic: str, database: sqlite3.Connection, stop: threading.Event) -> None:
    """Count records until `stop` is set."""
    database.executescript(TABLES)
    if database.execute("SELECT 1 FROM topic").fetchone() is None:
        database.execute("INSERT INTO topic VALUES (?)", [cluster.topics.describe(topic).topic_id])
    ((topic_id,),) = database.execute("SELECT id FROM topic")
    start = dict(database.execute("SELECT partition, next FROM positions"))
    for record in cluster.follow(topic, start=start, topic_id=topic_id, caught_up=database.commit, stop=stop):
        database.execute(COUNT, [record.key or b""])
        database.execute(MOVE, [record.partition, record.offset + 1])
    database.commit()


def main() -> None:
    parser = argparse.ArgumentParser(description="Count a topic's records by key.")
    parser.add_argument("topic")
    parser.add_argument("database")
    arguments, stop = parser.parse_args(), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with l0gc.open(os.environ["L0GC_URL"]) as cluster, sqlite3.connect(arguments.database) as database:
        count(cluster, arguments.topic, database, stop)


if __name__ == "__main__":
    main()
