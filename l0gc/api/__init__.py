"""l0gc as a library: `with l0gc.open("s3://bucket/prefix") as cluster: ...`, which does what the commands do.

Each method calls what its command calls, and decides nothing itself. Results have the names of the command's JSON; errors
are those of `l0gc.errors`. Work that could be done only in part raises its error afterwards, with the result as
`error.result`. The names in `__all__`, and in docs/work/library.md, are public and stay.
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
        is_result = name[0].isupper() or name == "__all__"  # Python looks for modules here, too
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
    """Return the cluster at `s3://bucket[/prefix]`, to be used in a `with` block. Sends no request yet.

    Args:
        endpoint_url: an S3-compatible server; by default what boto3 finds, in `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` or
            the profile, else AWS.
        region: the bucket's; by default `AWS_REGION` or `AWS_DEFAULT_REGION`, else what boto3 finds.
        profile: the AWS profile; credentials are found as boto3 finds them.
        sse: how each object that is written is encrypted: `AES256`, `aws:kms` or `aws:kms:dsse`; by default `L0GC_SSE`, else
            as the bucket says.
        sse_kms_key_id: the key for that, by default `L0GC_SSE_KMS_KEY_ID`; with it alone, `sse` is `aws:kms`.
        store_timeout_s: how long requests may wait in total for a store that does not answer, seconds or a `timedelta`.
        idle_timeout_s: after how long an idle connection is closed: sooner than a NAT or a firewall forgets it.
        cluster_id: refuse a bucket of any other cluster.
        epoch_interval_s: uploads and housekeeping advance an epoch that is older than this, seconds or a `timedelta`.

    Raises:
        UsageError: the URL or the endpoint cannot be one.
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
