"""What driver and executors exchange: where the bucket is, and what went wrong.

The bucket's configuration is sent with the work, and holds no secret. Each executor resolves credentials as boto3 does: from
its environment, where the driver may have put its own (`credentials.py`), from a profile, or from the role of its machine.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from l0gc import errors
from l0gc.spark.credentials import are_sent
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store

JOB_ERRORS: Final = (PySparkException, Py4JError, ConnectionRefusedError, ConnectionResetError)
"""What a job of Spark's fails with: in Python, in Java, or since Java is gone."""
_FULL: Final = os.strerror(errno.ENOSPC)
_ERROR_LINE: Final = re.compile(r"(?:([\w.]+)\.)?(\w+): (.*)")


@functools.cache
def store_at(config: StoreConfig) -> S3Store:
    """The store, on an executor; the same one for all tasks of a worker, since setting up its clients takes a while."""
    return S3Store(replace(config, profile=None) if are_sent() else config)


def cause_of(error: BaseException) -> errors.L0gcError:
    """One of `JOB_ERRORS` as what an executor's l0gc raised, if it did; others as an `L0gcError` that says what failed.

    Raises:
        KeyboardInterrupt: a signal ended the job. pyspark then sends Java one more message, on a connection in the middle
            of an answer, and that failure hides the signal.
    """
    behind = error.__context__
    while behind is not None:
        if isinstance(behind, KeyboardInterrupt):
            raise behind
        behind = behind.__context__
    first = ""
    for line in reversed(str(error).splitlines()):
        m = _ERROR_LINE.fullmatch(line.strip())
        if m is None:
            continue
        kind = getattr(errors, m[2], None) if m[1] == errors.__name__ else None
        if isinstance(kind, type) and issubclass(kind, errors.L0gcError):
            return kind(m[3])
        first = first or line.strip()
    if _FULL in str(error):
        return errors.L0gcError(
            f"the Spark job failed: {_FULL}, here or on an executor; free some, or name a folder that has more "
            "(TMPDIR, spark.local.dir)"
        )
    if isinstance(error, Py4JJavaError):
        first = str(error.java_exception.toString()).partition("\n")[0]
    elif not isinstance(error, PySparkException):
        return errors.L0gcError(
            "the Spark job failed: its Java has gone, killed or out of memory (spark.driver.memory); run it again"
        )
    return errors.L0gcError(
        f"the Spark job failed: {first or 'Spark gave no reason'} (run it with -v for the traceback)"
    )


@contextmanager
def telling_causes() -> Iterator[None]:
    """Raises a failure inside as `cause_of` explains it."""
    try:
        yield
    except JOB_ERRORS as e:
        raise cause_of(e) from e
