"""A task of an orchestrator: loads files into a topic, each record once, however often the task is repeated.

`load` is a plain function: call it from a task of Airflow, Prefect or Dagster, which may repeat it, too. As a program,
`python orchestrated_task.py flights day.ndjson`, it ends with l0gc's exit codes, for a KubernetesPodOperator or cron. It
takes the URL from `L0GC_URL`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import l0gc
from l0gc.errors import L0gcError

AGAIN = {1, 3}
"""Exit codes of errors that another attempt may not meet: the store failed, or some objects did. Other errors persist.
"""


def load(url: str, topic: str, files: Sequence[Path], *, attempts: int = 4, wait_s: float = 5.0) -> tuple[int, int]:
    """Upload the files and lift them into L1; return how many records are new, and how many were there.

    The producer's name stands for this input. A run that was killed half-way, or whose reply was lost, is repeated with
    the same name and files, and continues where it ended.
    """
    producer = f"load-{files[0].stem}"
    new = 0
    for attempt in range(1, attempts + 1):
        try:
            with l0gc.open(url) as cluster:
                uploaded = cluster.upload(topic, *files, producer=producer)
                new += uploaded.records
                cluster.reconcile(topic=topic)
                return new, uploaded.records + uploaded.skipped - new
        except L0gcError as e:
            if e.exit_code not in AGAIN or attempt == attempts:
                raise
            new += getattr(getattr(e, "so_far", None), "records", 0)
            print(f"attempt {attempt} of {attempts}: {e}", file=sys.stderr)
            time.sleep(wait_s * 2 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")


def main() -> int:
    parser = argparse.ArgumentParser(description="Load files of lines into a topic, each record once.")
    parser.add_argument("topic")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--wait", type=float, default=5.0, metavar="SECONDS", help="before the second attempt")
    given = parser.parse_args()
    try:
        new, before = load(os.environ["L0GC_URL"], given.topic, given.files, wait_s=given.wait)
    except L0gcError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    print(f"{new} new records, {before} were there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
