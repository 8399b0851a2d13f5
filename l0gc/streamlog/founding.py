"""Founding a cluster: the store is tried first, and nothing is left behind where it is refused.

Everything rests on the store's conditional writes, so no log begins before they were tried on the bucket itself. A bucket
that this very call created, and in which no cluster came to be, is removed again. Repeated, it changes nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from l0gc.errors import L0gcError
from l0gc.storage.probe import probe
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.format import check_format, remember_etags


@dataclass(frozen=True, slots=True)
class FoundedCluster:
    """The cluster that is there now. `created`: by this call; `probed`: what the store was tried for, and has passed."""

    cluster_id: str
    cluster_epoch: int
    created: bool
    shards: int
    key_template: str
    journals: int
    external_log: bool
    probed: list[str]


def found_cluster(
    cluster: Cluster,
    store: S3Store,
    *,
    create_bucket: bool = False,
    shards: int | None = None,
    key_template: str | None = None,
    journals: int | None = None,
    external_log: bool = False,
) -> FoundedCluster:
    """Try the store, and found a cluster there, unless it is there already. None stands for the default.

    Args:
        store: that of `cluster`.
        create_bucket: whether to create the bucket, if it is not there.

    Raises:
        BucketNotFoundError: there is no bucket, and it is not to be created.
        StoreUnfitError: the store lacks something that l0gc needs.
        UsageError: there is a cluster with other settings.
    """
    made = create_bucket and store.create_bucket()
    try:
        store.now_ms()  # some stores create a bucket at the first write; only `create_bucket` may do that
        check_format(store)
        probed = probe(store, cluster.runtime)
        quoted = store.quotes_etags
        created = cluster.controller.bootstrap(
            shards=shards, key_template=key_template, journals=journals, external_log=external_log
        )
    except BaseException:
        if made:  # by this very call, and there is no cluster in it
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
