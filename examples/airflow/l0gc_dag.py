"""Airflow: four steps of `l0gc gc` one after the other every ten minutes, three each hour, and `l0gc verify` once a
day.

For workers that have l0gc and Java. On other workers, run the same commands in the image of the project's Dockerfile
with a KubernetesPodOperator (`arguments=shlex.split(command)[1:]`). Settings and credentials come from the workers'
environment.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

SCHEDULES = {
    "l0gc": ("*/10 * * * *", ("housekeep", "reconcile", "compute-watermark", "sweep --min-age 1h")),
    "l0gc_hourly": ("18 * * * *", ("merge", "expire", "vacuum")),
    "l0gc_verify": ("41 3 * * *", ("verify",)),
}
START = datetime(2026, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - Airflow also runs on Python 3.10

for dag_id, (schedule, jobs) in SCHEDULES.items():
    with DAG(
        dag_id=dag_id,
        schedule=schedule,
        start_date=START,
        catchup=False,  # a run does all the work that is there, so missed runs need no repetition
        max_active_runs=1,  # two runs at once are safe, but waste work
        dagrun_timeout=timedelta(hours=6),
        tags=["l0gc"],
    ):
        before = None
        for job in jobs:
            # `all_done`: the jobs need no order, so a failed one must not stop the others.
            task = BashOperator(
                task_id=job.split()[0].replace("-", "_"),
                bash_command=f"l0gc {job} --json",
                append_env=True,
                trigger_rule="all_done",
            )
            if before is not None:
                before >> task
            before = task
