"""What executors are sent, and what they keep: where the bucket is, credentials for it, and the handles on the cluster.

**Credentials** go to the Python workers by a way that nothing logs: into the environment that Spark sends along with each
Python function and its code, in the messages from the driver to the executors. A Spark setting, a data source's options and
a command line show in the UI, the event log and process lists. Only credentials that an executor cannot get on its own are
sent: keys from the driver's environment, a profile, a login. A role of the driver's machine or pod is not sent: the
executors have one as well, and theirs is renewed while the job runs.

**Handles** stay from one task to the next: a journal that was replayed only has to be caught up with. A planner's process
lives as long as its query, an executor's worker for many tasks. A worker keeps two journals, so that its memory is bounded.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Final

from l0gc.errors import AccessDeniedError
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Parallel
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Handles

_THREADS: Final = 32
"""For the requests of one task."""
_CLUSTERS_KEPT: Final = 2
_JOURNALS_KEPT: Final = 2
_ROLES: Final = {"iam-role", "container-role", "assume-role-with-web-identity"}
"""How boto3 calls credentials that come with a machine, a container or a pod."""

CORES: Final = "L0GC_SPARK_CORES"
"""The variable that tells the process in which Spark plans how many cores the executors have."""
_SENT: Final = "L0GC_DRIVER_CREDENTIALS"
_NO_TOKEN: Final = ""
"""Set, so that an executor's own token is not taken for one of these keys."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where the bucket is, as the executors see it, and which cluster must be in it; None accepts any. No secret."""

    config: StoreConfig
    cluster_id: str | None = None


@lru_cache(maxsize=_CLUSTERS_KEPT)
def cluster_at(address: ClusterAddress) -> Handles:
    """Return the cluster, for all tasks of a process.

    It resolves credentials as boto3 does: from the environment, where the driver may have put its own (`for_executors`),
    from a profile, or from the role of its machine. Where the driver has put its own, a profile has no effect.
    """
    config = replace(address.config, profile=None) if _SENT in os.environ else address.config
    return Handles(
        S3Store(config),
        Runtime(),
        Parallel(_THREADS, cores=1),
        expected_cluster_id=address.cluster_id,
        journals_kept=_JOURNALS_KEPT,
    )


@cache
def leave_out_of_collections() -> None:
    """From now on, garbage collections of this process pass over what it holds: Spark's processes collect all garbage
    after each task and each plan, and for the modules of l0gc, boto3 and Arrow alone that takes 25 ms of CPU."""
    gc.collect()
    gc.freeze()


def for_executors(store: S3Store, send: bool | None = None) -> dict[str, str]:
    """Return the variables that make the executors act as the driver does; none if they are to act as themselves.

    Args:
        send: whether to send credentials; by default only those that do not come with the machine.

    Raises:
        AccessDeniedError: they are to be sent, but none were found.
        StoreError: they cannot be renewed.
    """
    if send is False:
        return {}
    credentials = store.access.session.get_credentials()
    if credentials is None:
        if send is None:
            return {}
        raise AccessDeniedError("--send-credentials: the driver has none; set AWS_ACCESS_KEY_ID or --profile")
    if send is None and credentials.method in _ROLES:
        return {}
    keys: Any = store.call("credentials", "", credentials.get_frozen_credentials)
    region, endpoint = store.access.region, store.access.endpoint_url
    return {
        _SENT: "1",
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        "AWS_SESSION_TOKEN": keys.token or _NO_TOKEN,
        "AWS_SECURITY_TOKEN": keys.token or _NO_TOKEN,
        **({"AWS_DEFAULT_REGION": region} if region else {}),
        **({"AWS_ENDPOINT_URL_S3": endpoint} if endpoint else {}),
    }
