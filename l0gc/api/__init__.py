"""l0gc as a library, which offers the work of the commands: `with l0gc.open("s3://bucket/prefix") as cluster: ...`.

Each method calls the same functions as its command, and makes no decisions itself. Results have the names of the
command's JSON; errors are those of `l0gc.errors`. If work could be done only in part, its error is raised at the end,
with the result as `error.result`. The names in `__all__`, and in docs/work/library.md, are public and stable.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from l0gc.api.cluster import Cluster as Cluster
from l0gc.api.engine import Engine as Engine
from l0gc.api.gc import GcResult as GcResult
from l0gc.api.groups import Pins as Pins
from l0gc.api.groups import Producers as Producers
from l0gc.api.groups import Runs as Runs
from l0gc.api.groups import Tables as Tables
from l0gc.api.groups import Topics as Topics
from l0gc.api.groups import checking
from l0gc.settings import IDLE_S, TIMEOUT_S
from l0gc.storage.config import REGION_VARIABLES, StoreConfig, first_of
from l0gc.streamlog.controller.handle import EPOCH_INTERVAL_S

if TYPE_CHECKING:
    from l0gc.api.results import *
else:

    def __getattr__(name: str) -> object:
        is_result = name[0].isupper() or name == "__all__"  # Python also asks for modules here
        results = vars(importlib.import_module("l0gc.api.results")) if is_result else {}
        if name == "__all__":
            own = ["Cluster", "Engine", "GcResult", "Pins", "Producers", "Runs", "Tables", "Topics", "open"]
            return sorted([*own, *(n for n in results if n[0].isupper())])
        if name not in results:
            raise AttributeError(f"module 'l0gc.api' has no attribute {name!r}")
        return results[name]


@checking
def open(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    sse: str | None = None,
    sse_kms_key_id: str | None = None,
    store_timeout_s: float | timedelta = TIMEOUT_S,
    idle_timeout_s: float | timedelta = IDLE_S,
    cluster_id: str | None = None,
    epoch_interval_s: float | timedelta = EPOCH_INTERVAL_S,
) -> Cluster:
    """Return the cluster at `s3://bucket[/prefix]`, for use in a `with` block. No request is sent yet.

    Args:
        endpoint_url: an S3-compatible server; by default, the one that boto3 finds in `AWS_ENDPOINT_URL_S3`,
            `AWS_ENDPOINT_URL` or the profile, or else AWS.
        region: the region of the bucket; by default `AWS_REGION` or `AWS_DEFAULT_REGION`, or else the one that boto3
            finds.
        profile: the AWS profile; credentials are looked up as by boto3.
        sse: the encryption of each written object: `AES256`, `aws:kms` or `aws:kms:dsse`; by default `L0GC_SSE`, or
            else the bucket's default.
        sse_kms_key_id: the key for the encryption, by default `L0GC_SSE_KMS_KEY_ID`; if only the key is given, `sse` is
            `aws:kms`.
        store_timeout_s: how long requests may wait in total for a silent store, in seconds or as a `timedelta`.
        idle_timeout_s: how long a connection may be idle before it is closed; it should be shorter than a NAT's or a
            firewall's limit.
        cluster_id: refuse a bucket of any other cluster.
        epoch_interval_s: the age at which uploads and housekeeping advance the epoch, in seconds or as a `timedelta`.

    Raises:
        UsageError: the URL or the endpoint is malformed.
    """
    region = region or first_of(os.environ, REGION_VARIABLES)
    config = StoreConfig.from_url(
        url,
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
        sse=sse,
        sse_kms_key_id=sse_kms_key_id,
        timeout_s=cast(float, store_timeout_s),
        idle_s=cast(float, idle_timeout_s),
    )
    return Cluster(config, cluster_id, cast(float, epoch_interval_s))
