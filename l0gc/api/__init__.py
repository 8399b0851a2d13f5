"""l0gc as a library: `with l0gc.open("s3://bucket/prefix") as cluster: ...`, which does what the commands do.

Each method calls what its command calls, and decides nothing itself. Results have the names of the command's JSON; errors
are those of `l0gc.errors`. Work that could be done only in part raises its error afterwards, with the result as
`error.result`. The names in `__all__`, and in docs/library.md, are public and stay.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Final

from l0gc.api.cluster import Cluster
from l0gc.api.engine import Engine
from l0gc.api.groups import Producers, Runs, Topics
from l0gc.storage.config import ENDPOINT_VARIABLES, REGION_VARIABLES, StoreConfig, first_of
from l0gc.streamlog.controller.handle import EPOCH_INTERVAL_S
from l0gc.streamlog.controller.state import Topic

if TYPE_CHECKING:
    from l0gc.collect.local import SweepResult
    from l0gc.collect.pause import NewPause, Pause
    from l0gc.collect.runs import RunDetail, RunList, UndeleteResult
    from l0gc.collect.vacuum import VacuumResult
    from l0gc.inspect.doctor.checkup import DoctorResult
    from l0gc.inspect.explain import Explanation
    from l0gc.inspect.report.page import Report
    from l0gc.inspect.status import Status
    from l0gc.inspect.verify.findings import VerifyResult
    from l0gc.streamlog.founding import FoundedCluster
    from l0gc.streamlog.housekeep import HousekeepResult
    from l0gc.streamlog.ingest.inputs import Source
    from l0gc.streamlog.ingest.result import UploadResult
    from l0gc.streamlog.level_one.expire import ExpireResult
    from l0gc.streamlog.level_one.merge_commit import MergeResult
    from l0gc.streamlog.level_one.reconcile import ReconcileResult
    from l0gc.streamlog.producers import ProducerList, ProducerView
    from l0gc.streamlog.reader import Record
    from l0gc.streamlog.topics import AdvancedEpoch, TopicDescription
    from l0gc.watermark.external_files import ExternalFiles
    from l0gc.watermark.pipeline import WatermarkResult

_HOMES: Final = {
    "collect.local": ["SweepResult"],
    "collect.pause": ["NewPause", "Pause"],
    "collect.runs": ["RunDetail", "RunList", "UndeleteResult"],
    "collect.vacuum": ["VacuumResult"],
    "inspect.doctor.checkup": ["DoctorResult"],
    "inspect.explain": ["Explanation"],
    "inspect.report.page": ["Report"],
    "inspect.status": ["Status"],
    "inspect.verify.findings": ["VerifyResult"],
    "streamlog.founding": ["FoundedCluster"],
    "streamlog.housekeep": ["HousekeepResult"],
    "streamlog.ingest.inputs": ["Source"],
    "streamlog.ingest.result": ["UploadResult"],
    "streamlog.level_one.expire": ["ExpireResult"],
    "streamlog.level_one.merge_commit": ["MergeResult"],
    "streamlog.level_one.reconcile": ["ReconcileResult"],
    "streamlog.producers": ["ProducerList", "ProducerView"],
    "streamlog.reader": ["Record"],
    "streamlog.topics": ["AdvancedEpoch", "TopicDescription"],
    "watermark.external_files": ["ExternalFiles"],
    "watermark.pipeline": ["WatermarkResult"],
}
"""Where the types are defined. A module is imported at the first use of its types: a command loads only what it needs."""

__all__: Final = [
    "AdvancedEpoch", "Cluster", "DoctorResult", "Engine", "ExpireResult", "Explanation", "ExternalFiles", "FoundedCluster",
    "HousekeepResult", "MergeResult", "NewPause", "Pause", "ProducerList", "ProducerView", "Producers",
    "ReconcileResult", "Record", "Report", "RunDetail", "RunList", "Runs", "Source", "Status", "SweepResult", "Topic",
    "TopicDescription", "Topics", "UndeleteResult", "UploadResult", "VacuumResult", "VerifyResult", "WatermarkResult",
    "open",
]  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for module, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(f"l0gc.{module}"), name)
        raise AttributeError(f"module 'l0gc.api' has no attribute {name!r}")


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
