"""The boto3 session of a bucket: where credentials and the region come from.

Every store has its own session, since credentials are not shared; botocore's description of S3 is read once for all of them.
Parsing it is most of what a client costs, and each task on Spark makes a store.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from l0gc.errors import UsageError
from l0gc.storage.config import StoreConfig

if TYPE_CHECKING:
    import boto3
    from botocore.loaders import Loader


def session_of(config: StoreConfig) -> boto3.Session:
    """A session for `config`. Raises `UsageError`: its profile, or the one that AWS_PROFILE names, cannot be used."""
    import boto3
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        core = botocore.session.Session(profile=config.profile)
        descriptions = _descriptions(core.get_config_variable("data_path"))
        core.register_component("data_loader", descriptions)
        session = boto3.Session(region_name=config.region, botocore_session=core)
        descriptions.search_paths[:] = dict.fromkeys(descriptions.search_paths)  # each session has added boto3's own
        return session
    except BotoCoreError as e:
        what = f"profile {config.profile!r}" if config.profile else "the AWS configuration"
        raise UsageError(f"{what} cannot be used: {e}") from e


@cache
def _descriptions(data_path: str | None) -> Loader:
    from botocore.loaders import create_loader

    return create_loader(data_path)
