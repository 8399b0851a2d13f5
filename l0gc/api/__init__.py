"""l0gc as a library: `with l0gc.open("s3://bucket/prefix") as cluster: ...`, which does what the commands do.

Each method calls what its command calls, and decides nothing itself. Results have the names of the command's JSON; errors
are those of `l0gc.errors`. What could be done in part only raises its error after the work, with what was done as
`error.result`. What is named in `__all__`, and in docs/library.md, is public and stays.
"""

from __future__ import annotations

import os
from typing import Final

from l0gc.api.cluster import Cluster
from l0gc.api.topics import Topics
from l0gc.collect.local import SweepResult
from l0gc.collect.vacuum import VacuumResult
from l0gc.inspect.status import Status
from l0gc.storage.config import ENDPOINT_VARIABLES, REGION_VARIABLES, StoreConfig, first_of
from l0gc.streamlog.controller.handle import EPOCH_INTERVAL_S
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.founding import FoundedCluster
from l0gc.streamlog.housekeep import HousekeepResult
from l0gc.streamlog.ingest.inputs import Source
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.level_one.expire import ExpireResult
from l0gc.streamlog.level_one.merge_commit import MergeResult
from l0gc.streamlog.level_one.reconcile import ReconcileResult
from l0gc.streamlog.reader import Record
from l0gc.streamlog.topics import TopicDescription
from l0gc.watermark.pipeline import WatermarkResult

__all__: Final = [
    "Cluster", "ExpireResult", "FoundedCluster", "HousekeepResult", "MergeResult", "ReconcileResult", "Record", "Source",
    "Status", "SweepResult", "Topic", "TopicDescription", "Topics", "UploadResult", "VacuumResult", "WatermarkResult",
    "open",
]  # fmt: skip


def open(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    cluster_id: str | None = None,
    epoch_interval_s: float = EPOCH_INTERVAL_S,
) -> Cluster:
    """The cluster at `s3://bucket[/prefix]`, to be used in a `with` block. Sends no request yet.

    Args:
        endpoint_url: an S3-compatible server; by default `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, else AWS.
        region: the bucket's; by default `AWS_REGION` or `AWS_DEFAULT_REGION`, else what boto3 finds.
        profile: the AWS profile; credentials are found as boto3 finds them.
        cluster_id: refuse a bucket of any other cluster.
        epoch_interval_s: uploads and housekeeping advance an epoch that is older than this.

    Raises:
        UsageError: the URL or the endpoint cannot be one.
    """
    endpoint_url = endpoint_url or first_of(os.environ, ENDPOINT_VARIABLES)
    region = region or first_of(os.environ, REGION_VARIABLES)
    config = StoreConfig.from_url(url, endpoint_url=endpoint_url, region=region, profile=profile)
    return Cluster(config, cluster_id, epoch_interval_s)
