"""Airflow: the four jobs of l0gc one after the other every ten minutes, and `l0gc verify` once a day.

For workers that have l0gc and Java. Where they do not, run the same commands in the image of the project's Dockerfile with a
KubernetesPodOperator (`arguments=shlex.split(command)[1:]`). Settings and credentials come from the workers' environment.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

JOBS = {
    "housekeep": "l0gc housekeep --json",
    "reconcile": "l0gc reconcile --json",
    "compute_watermark": "l0gc compute-watermark --json",
    "sweep": "l0gc sweep --min-age 1h --json",
}
START = datetime(2026, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - Airflow also runs on Python 3.10

with DAG(
    dag_id="l0gc",
    schedule="*/10 * * * *",
    start_date=START,
    catchup=False,  # a run takes up whatever is there; missed ones need no repetition
    max_active_runs=1,  # saves work; two at once are safe
    dagrun_timeout=timedelta(hours=6),
    tags=["l0gc"],
):
    before = None
    for name, command in JOBS.items():
        # `all_done`: the jobs need no order, so one that failed keeps none of the others.
        task = BashOperator(task_id=name, bash_command=command, append_env=True, trigger_rule="all_done")
        if before is not None:
            before >> task
        before = task

with DAG(
    dag_id="l0gc_verify",
    schedule="41 3 * * *",
    start_date=START,
    catchup=False,
    max_active_runs=1,
    tags=["l0gc"],
):
    BashOperator(task_id="verify", bash_command="l0gc verify --json", append_env=True)
