"""The keywords of the library's methods: the options in l0gc/operations.py (docs/programs/library.py)."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, TypedDict

from l0gc.operations import ComputeWatermark, Expire, Housekeep, Merge, Reconcile, Sweep, TableSync, Vacuum


class InitKeywords(TypedDict, total=False):
    create_bucket: bool
    shards: int | None
    key_template: str | None
    journals: int | None
    external_log: bool


class UploadKeywords(TypedDict, total=False):
    partition: int | None
    key_field: str | None
    timestamp_field: str | None
    timestamp_unit: Literal["s", "ms", "us", "ns"] | None
    producer: str | None
    batch_bytes: int
    format: Literal["auto", "raw", "length-prefixed", "parquet", "arrow"]


class ReadKeywords(TypedDict, total=False):
    before_offset: int | None
    from_time_ms: int | datetime | None
    before_time_ms: int | datetime | None
    skip_holes: bool
    pin: bool
    topic_id: str | None


class HousekeepKeywords(TypedDict, total=False):
    barrier: bool


class ReconcileKeywords(TypedDict, total=False):
    up_to: int | None
    max_bytes: int | None
    round_bytes: int


class MergeKeywords(TypedDict, total=False):
    dry_run: bool
    target_bytes: int
    fan_in: int
    max_bytes: int


class ExpireKeywords(TypedDict, total=False):
    dry_run: bool


class TableSyncKeywords(TypedDict, total=False):
    keep_snapshots_s: float | timedelta


class ComputeWatermarkKeywords(TypedDict, total=False):
    scan: bool
    dry_run: bool


class SweepKeywords(TypedDict, total=False):
    dry_run: bool
    max_objects: int | None
    max_bytes: int | None
    max_rate: float | None
    max_delete_ratio: float | None
    record: bool
    record_dir: Path | None
    min_age_s: float | timedelta
    shards: tuple[int, int] | None
    shadow: bool
    grace_s: float | timedelta
    up_to: int | None
    purge_versions: bool


class VacuumKeywords(TypedDict, total=False):
    dry_run: bool
    max_objects: int | None
    max_bytes: int | None
    max_rate: float | None
    max_delete_ratio: float | None
    record: bool
    record_dir: Path | None
    l1_grace_s: float | timedelta
    orphan_age_s: float | timedelta
    orphans: bool
    keep_runs_s: float | timedelta


class GcKeywords(TypedDict, total=False):
    dry_run: bool
    shadow: bool
    housekeep: Housekeep | None
    reconcile: Reconcile | None
    merge: Merge | None
    expire: Expire | None
    table_sync: TableSync | None
    compute_watermark: ComputeWatermark | None
    sweep: Sweep | None
    vacuum: Vacuum | None


class VerifyKeywords(TypedDict, total=False):
    deep: bool
    min_age_s: float | timedelta
    shadow: bool
    access_logs: str | None
