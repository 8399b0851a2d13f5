"""Found a cluster: test the store first, and leave nothing behind if it is refused.

All safety rests on the store's conditional writes, so no log begins before they were tested on the bucket itself. If
founding fails, a bucket that this call created is removed again. A repeated call changes nothing.

If a cluster has lost its controller log, founding a new one is refused: it would begin at epoch 0, far below the journals
and the watermark that exist (hazard 10).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from l0gc.errors import EpochRegressionError, L0gcError
from l0gc.formatting import Outcome
from l0gc.keys import JOURNALS, PUBLISHED_WATERMARK
from l0gc.operations import Init
from l0gc.storage.probe import probe
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.format import check_format, remember_etags


@dataclass(frozen=True, slots=True)
class FoundedCluster(Outcome):
    """The cluster that exists now.

    Attributes:
        cluster_id: The cluster's id.
        cluster_epoch: Its epoch.
        created: Whether it was founded now.
        shards: Its number of shards.
        key_template: The shape of its L0 keys.
        journals: How many journals it has.
        external_log: Whether another system counts the epochs.
        probed: The tests that the store passed.
    """

    cluster_id: str
    cluster_epoch: int
    created: bool
    shards: int
    key_template: str
    journals: int
    external_log: bool
    probed: list[str]


def found_cluster(cluster: ClusterHandles, store: S3Store, options: Init) -> FoundedCluster:
    """Test the store, and found a cluster there unless one exists. `store` is the cluster's store.

    Raises:
        BucketNotFoundError: the bucket does not exist, and `options` do not allow its creation.
        StoreUnfitError: the store lacks something that l0gc needs.
        UsageError: a cluster with other settings exists.
        EpochRegressionError: a cluster was here, and its controller log is gone.
    """
    made = options.create_bucket and store.create_bucket()
    try:
        store.now_ms()  # fails if the bucket does not exist: some stores would create it at the first write
        check_format(store)
        refuse_where_a_log_is_gone(cluster)
        probed = probe(store, cluster.runtime)
        quoted = store.quotes_etags
        created = cluster.controller.bootstrap(
            shards=options.shards,
            key_template=options.key_template,
            journals=options.journals,
            external_log=options.external_log,
        )
    except BaseException:
        if made:  # created by this call, so it holds no cluster
            with suppress(L0gcError):
                store.delete_bucket()
        raise
    remember_etags(store, quoted=quoted)
    state = cluster.controller.snapshot()
    return FoundedCluster(
        state.cluster_id,
        state.epoch,
        created,
        state.shards,
        state.key_template,
        state.journals,
        state.external_log,
        probed,
    )


def refuse_where_a_log_is_gone(cluster: ClusterHandles) -> None:
    """Refuse to begin a controller log if journals or a watermark show that one existed before.

    Raises:
        EpochRegressionError: a controller log existed, and is gone.
    """
    folder = cluster.controller.replica.log.list_folder()
    if folder.entries or folder.checkpoints:
        return
    journals = next(iter(cluster.store.scan(JOURNALS)), None)
    left = [*cluster.store.list(PUBLISHED_WATERMARK).modified_ms, *(journals.keys if journals is not None else ())]
    if left:
        raise EpochRegressionError(
            f"the controller log is gone, but {left[0]} of a cluster that was founded here before still exists; nothing was "
            "written. Restore the controller log from a version or a backup, or found a new cluster under another URL"
        )
