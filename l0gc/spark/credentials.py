"""The driver's credentials for the executors' Python workers, by a way that nothing logs.

They go into the environment that Spark sends along with each Python function and its code: in the messages from the
driver to the executors, and never in a Spark setting, a data source's options or a command line, which the UI, the event
log and process lists show.

Only credentials that an executor cannot get on its own are sent: keys from the driver's environment, a profile, a login. A
role of the driver's machine or pod is not sent: the executors have one as well, and theirs is renewed while the job runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from l0gc.errors import AccessDeniedError
from l0gc.storage.s3 import S3Store

_ROLES: Final = {"iam-role", "container-role", "assume-role-with-web-identity"}
"""How boto3 calls credentials that come with a machine, a container or a pod."""

_SENT: Final = "L0GC_DRIVER_CREDENTIALS"
_NO_TOKEN: Final = ""
"""Set, so that an executor's own token is not taken for one of these keys."""


def for_executors(store: S3Store, send: bool | None = None) -> dict[str, str]:
    """The variables that make the executors act as the driver does; none if they are to act as themselves.

    Args:
        send: whether to send credentials; by default only those that do not come with the machine.

    Raises:
        AccessDeniedError: they are to be sent, but none were found.
        StoreError: they cannot be renewed.
    """
    if send is False:
        return {}
    found = store.session.get_credentials()
    if found is None:
        if send is None:
            return {}
        raise AccessDeniedError("--send-credentials: the driver has none; set AWS_ACCESS_KEY_ID or --profile")
    if send is None and found.method in _ROLES:
        return {}
    keys = store.call("credentials", "", found.get_frozen_credentials)
    region = store.session.region_name
    return {
        _SENT: "1",
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        "AWS_SESSION_TOKEN": keys.token or _NO_TOKEN,
        "AWS_SECURITY_TOKEN": keys.token or _NO_TOKEN,
        **({"AWS_DEFAULT_REGION": region} if region else {}),
    }


def are_sent(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is an executor's worker with the driver's credentials; a profile then has no effect."""
    return _SENT in environment
