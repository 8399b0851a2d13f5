"""Send the bucket's address and credentials to executors, which create and keep the cluster's handles from them.

**Credentials** are sent to the Python workers in a way that is not logged: in the environment that Spark sends with
each Python function and its code, from the driver to the executors. Spark settings, a data source's options and command
lines would appear in the UI, the event log and process lists. Only credentials that an executor cannot get on its own
are sent: keys from the driver's environment, a profile or a login. The role of the driver's machine or pod is not sent,
since the executors also have a role, which is renewed while the job runs.

**Handles** are kept from one task to the next, so that a replayed journal only has to catch up. A planner's process
lasts as long as its query, and an executor's worker lasts for many tasks. A worker keeps two journals, which bounds its
memory.
"""

from __future__ import annotations

import gc
import os
from functools import cache, lru_cache
from typing import Any, Final

import msgspec

from l0gc.errors import AccessDeniedError
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Parallel
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles

_THREADS: Final = 32
"""The number of threads for the requests of one task."""
_CLUSTERS_KEPT: Final = 2
_JOURNALS_KEPT: Final = 2
_ROLES: Final = {"iam-role", "container-role", "assume-role-with-web-identity"}
"""boto3's names for credentials that come with a machine, a container or a pod."""

CORES: Final = "L0GC_SPARK_CORES"
"""The variable with the number of the executors' cores, for the process in which Spark plans."""
_SENT: Final = "L0GC_DRIVER_CREDENTIALS"
_NO_TOKEN: Final = ""
"""The value that keeps an executor's own token from being combined with the driver's keys."""


class ClusterAddress(msgspec.Struct, frozen=True):
    """The bucket's address as seen by the executors, and the cluster that must be in it; None accepts any cluster. It
    contains no secret.
    """

    config: StoreConfig
    cluster_id: str | None = None


@lru_cache(maxsize=_CLUSTERS_KEPT)
def cluster_at(address: ClusterAddress) -> ClusterHandles:
    """Return the cluster that all tasks of a process share.

    It looks up credentials as boto3 does: from the environment, in which the driver may have put its own
    (`for_executors`), from a profile, or from the role of its machine. If the driver has put its own there, a profile
    has no effect.
    """
    config = msgspec.structs.replace(address.config, profile=None) if _SENT in os.environ else address.config
    return ClusterHandles(
        S3Store(config),
        Runtime(),
        Parallel(_THREADS, cores=1),
        expected_cluster_id=address.cluster_id,
        journals_kept=_JOURNALS_KEPT,
    )


@cache
def leave_out_of_collections() -> None:
    """Exclude existing objects from later garbage collections of this process.

    Spark's processes run a full collection after each task and each plan, which takes 25 ms of CPU time for the modules
    of l0gc, boto3 and Arrow alone.
    """
    gc.collect()
    gc.freeze()


def for_executors(store: S3Store, send: bool | None = None) -> dict[str, str]:
    """Return the variables that give the executors the driver's access; none if they use their own access.

    Args:
        send: whether to send credentials; by default, only those that do not come with the machine are sent.

    Raises:
        AccessDeniedError: credentials should be sent, but none were found.
        StoreError: the credentials cannot be renewed.
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
