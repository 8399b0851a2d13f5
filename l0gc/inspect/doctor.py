"""Check this machine, the bucket, and the cluster in it.

The checks show whether the commands have the permissions that they need, and whether the store keeps its guarantees in
a race. A check tries the operation itself in a separate folder, or with a request that cannot take effect: a read of a
missing key, a replace of a missing version, a delete of a key that is never written. It leaves nothing behind. A store
answers 403 to this request if it would refuse the real one. A check that could not try something reports a warning,
never ok. Of Java, Spark and the libraries, only `java -version` is started. The cluster's problems are the causes that
all views show (`causes.py`).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import ClassVar, Final

from l0gc import __version__
from l0gc.collect.plan import UNKNOWN, versioning_of
from l0gc.collect.vacuum import GARBAGE
from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    EndedError,
    L0gcError,
    NotFoundError,
    NotInitialisedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SafetyError,
    StoreError,
    StoreUnfitError,
    StoreUnreachableError,
    ThrottledError,
    UsageError,
    installing,
)
from l0gc.formatting import Outcome, count
from l0gc.inspect.causes import LOCAL_CLOCK, SKEW_MS, UNREADABLE_JOURNAL, UNSAFE, WAITS_FOR, clock_skew
from l0gc.inspect.overview_reader import read_overview
from l0gc.inspect.surroundings import check_surroundings
from l0gc.keys import FORMAT
from l0gc.runtime import Runtime
from l0gc.storage import bucket
from l0gc.storage.bucket import EXPIRES, EXPIRES_MARKERS, EXPIRES_OLD, MOVES, LifecycleRule
from l0gc.storage.objectstore import OFF, ObjectStore
from l0gc.storage.parallel import WorkerThreads
from l0gc.storage.probe import probe
from l0gc.storage.refusals import DENIED
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.format import QUOTED, check_format

OK: Final = "ok"
WARNING: Final = "warning"
FAILURE: Final = "failure"
JAVA: Final = 17
_LIBRARIES: Final = ("boto3", "obstore", "pyarrow", "msgspec")
RACERS: Final = 8
_TOGETHER_S: Final = 5.0
"""How long a thread in the race waits for the others."""
ROUNDS: Final = 2
VERSIONED_FOLDERS: Final = ("level_zero/", "level_one/", "l0gc/")
"""The folders in which old versions accumulate. Only `undelete` needs them, so a rule may expire them everywhere."""

NEEDED: Final = {
    ("read", FORMAT): "every command",
    ("read", "l0gc/controller/"): "every command",
    ("read", "l0gc/journal/"): "upload, reconcile, housekeep, read, status",
    ("read", "l0gc/watermarks/"): "compute-watermark, sweep, status",
    ("read", "level_zero/data/"): "reconcile, read",
    ("read", "level_one/data/"): "read",
    ("write", "l0gc/controller/"): "init, topic, epoch advance, upload, housekeep",
    ("write", "l0gc/journal/"): "upload, reconcile, housekeep",
    ("write", "l0gc/watermarks/"): "upload, reconcile, housekeep, compute-watermark",
    ("write", "l0gc/runs/"): "sweep",
    ("write", "level_zero/data/"): "upload",
    ("write", "level_one/data/"): "reconcile",
    ("delete", "l0gc/journal/"): "housekeep",
    **{("delete", folder): kind.command for kind in GARBAGE.values() for folder in kind.folders},
}
"""The commands that need each permission, by operation and folder."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of doctor's output: the name of the check, its status, and a remedy unless it is ok.

    `exit_code` is the command's exit code after this failure: 6 if the store lacks a feature, otherwise the error's
    exit code.
    """

    name: str
    status: str
    text: str
    remedy: str = ""
    exit_code: int = 6


@dataclass(frozen=True)
class DoctorResult(Outcome):
    """All checks, in the order in which they ran.

    Attributes:
        checks: The lines of all checks, each with `name`, `status` (`ok`, `warning` or `failure`), `text`, `remedy`,
            which is empty for `ok`, and the `exit_code` of its failure. A check can have several lines.
        failures: The number of failures.
        warnings: The number of warnings.
    """

    checks: list[Check]
    derived: ClassVar[tuple[str, ...]] = ("failures", "warnings")

    @property
    def failures(self) -> int:
        return sum(c.status == FAILURE for c in self.checks)

    @property
    def warnings(self) -> int:
        return sum(c.status == WARNING for c in self.checks)

    @property
    def problem(self) -> EndedError | None:
        """Return the first failure, with its remedy, as the command's error."""
        failed = next((c for c in self.checks if c.status == FAILURE), None)
        return (
            None if failed is None else EndedError(f"{failed.name}: {failed.text}; {failed.remedy}", failed.exit_code)
        )


def ok(name: str, text: str) -> Check:
    return Check(name, OK, text)


def warning(name: str, text: str, remedy: str) -> Check:
    return Check(name, WARNING, text, remedy)


def failure(name: str, text: str, remedy: str, exit_code: int = 6) -> Check:
    return Check(name, FAILURE, text, remedy, exit_code)


def guarded(name: str, check: Callable[[], Iterable[Check]], remedy: str) -> list[Check]:
    """Return the lines of a check. If an error ended the check, return it as a failure with this remedy."""
    try:
        return list(check())
    except (StoreUnreachableError, ThrottledError) as e:  # not caused by a policy or a setting
        return [failure(name, str(e), "then run l0gc doctor again", e.exit_code)]
    except L0gcError as e:
        return [failure(name, str(e), remedy, e.exit_code)]


def examine(handles: ClusterHandles, store: S3Store, progress: Callable[[str], None]) -> DoctorResult:
    """Run all checks, and call `progress` with the name of each part before it runs."""
    parts: list[tuple[str, Callable[[], Iterable[Check]], str]] = [
        ("java", java, "install Java 17 or newer"),
        ("spark", spark, installing()),
        ("versions", versions, installing()),
        ("bucket", lambda: reachable(store, handles.runtime), "then run l0gc doctor again, for the rest"),
        ("permissions", lambda: permissions(store, handles.runtime), "check the credentials' policy"),
        ("settings", lambda: settings(store), "ask the owner of the bucket"),
        ("store", lambda: promises(store, handles.runtime), "see the store's answer above"),
        ("cluster", lambda: cluster(handles), "see l0gc help operations"),
    ]
    checks: list[Check] = []
    for name, check, remedy in parts:
        progress(name)
        lines = guarded(name, check, remedy)
        checks += lines
        if name == "bucket" and any(c.status == FAILURE for c in lines):
            break  # without a bucket, all other checks would fail in the same way
    return DoctorResult(checks)


# -- this machine --------------------------------------------------------------------------------------------------------


def java_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`."""
    m = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if m is None:
        return None
    return int(m[2]) if m[1] == "1" and m[2] else int(m[1])


def java() -> Iterator[Check]:
    """Check for Java 17 or newer, for work on Spark."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "install one (apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    needs = (
        "without it, reconcile, merge, compute-watermark, verify and gc run in this process, which suits small buckets"
    )
    if path is None or not Path(path).exists():
        yield warning("java", f"not found; {needs}", remedy)
        return
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        yield warning("java", f"{path} does not start ({e}); {needs}", remedy)
        return
    version = java_version(answer.stderr + answer.stdout)
    if version is None or version < JAVA:
        yield warning("java", f"{path} is version {version or 'unknown'}, below {JAVA}; {needs}", remedy)
    else:
        yield ok("java", f"{version} ({path})")


def spark() -> Iterator[Check]:
    """Check that pyspark 4 is installed."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        yield failure("spark", "pyspark is not installed", installing())
        return
    if int(version.split(".")[0]) < 4:
        yield failure("spark", f"pyspark {version} has no Python data sources", installing())
        return
    try:
        check_surroundings()
    except UsageError as e:
        yield warning("spark", str(e), "--engine local does the work without Spark")
    else:
        yield ok("spark", f"pyspark {version}")


def versions() -> Iterator[Check]:
    """Report the versions that belong in a bug report."""
    libraries = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES)
    yield ok("versions", f"l0gc {__version__}, Python {platform.python_version()}, {libraries}")


# -- the bucket ----------------------------------------------------------------------------------------------------------


def reachable(store: S3Store, runtime: Runtime) -> Iterator[Check]:
    """Check the credentials, the bucket, and the clocks."""
    credentials = store.access.session.get_credentials()
    if credentials is None:
        yield failure(
            "credentials",
            f"no credentials for {store.config.url}",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --profile, or run where an instance role is",
            AccessDeniedError.exit_code,  # as for all other commands
        )
        return
    yield ok("credentials", f"found ({credentials.method})")
    theirs = store.now_ms()
    yield ok("bucket", f"{store.config.url} answers")
    if store.access.bulk is None:
        why = f"boto3 lists and reads, not obstore: {store.access.obstacle}"
        yield warning("client", why, "nothing is wrong, but listings and reads take more CPU")
    skew = clock_skew(runtime.clock.now_ms(), theirs)
    if skew is None:
        yield ok("clock", f"within {SKEW_MS // 1000} s of the store's")
    else:
        yield warning("clock", skew.detail, skew.remedy)


def promises(store: ObjectStore, runtime: Runtime) -> Iterator[Check]:
    """Check the guarantees on which safety relies: run the probe of `init`, then conditional writes by eight threads at
    once.
    """
    form = None
    with suppress(L0gcError):  # the check of the cluster reports this error
        form = check_format(store)
    try:
        tried = probe(store, runtime)
    except AccessDeniedError as e:
        yield warning("store", f"not tried completely: {e}", "allow it, or run this once as the user that runs init")
        return
    except StoreUnfitError as e:
        yield failure("store", str(e), "keep the cluster on another store: l0gc refuses this one, as init does")
        return
    yield ok("store", ", ".join(tried))
    if form is not None and store.quotes_etags != (form.etags == QUOTED):
        yield failure(
            "etags",
            f"the store does not accept ETags in the form that {FORMAT} records ({form.etags})",
            "run l0gc init again: it probes the store, and records which form it accepts",
        )
    lost = race(store, runtime)
    if lost:
        yield failure("race", lost, "keep the cluster on another store: two writers could own one log entry")
    else:
        yield ok("race", f"{ROUNDS} rounds of {RACERS} threads: one winner each, for creates and for replaces")


def race(store: ObjectStore, runtime: Runtime) -> str:
    """Let threads compete for one key. Return the fault as a sentence, or an empty text."""
    folder = f"l0gc/probe/{runtime.new_id()}/"
    keys = [f"{folder}{n}" for n in range(ROUNDS)]
    try:
        with WorkerThreads(RACERS, "race") as pool:
            for key in keys:
                for kind in ("create", "replace"):
                    etag = "" if kind == "create" else store.get(key).etag
                    winners = _winners(pool, store, key, etag)
                    body = store.get(key).body
                    if len(winners) > 1 or (winners and body != winners[0]):
                        return f"{len(winners)} threads succeeded with a conditional {kind} of one key"
    finally:
        store.discard(folder)
    return ""


def _winners(pool: Executor, store: ObjectStore, key: str, etag: str) -> list[bytes]:
    start = Barrier(RACERS)

    def one(n: int) -> bytes | None:
        body = f"{n} {etag}".encode()
        with suppress(BrokenBarrierError):  # this machine may allow fewer threads
            start.wait(_TOGETHER_S)
        try:
            if etag:
                store.put_if_match(key, body, etag)
            else:
                store.put_if_absent(key, body)
        except (PreconditionFailedError, AmbiguousWriteError, ThrottledError):
            return None
        return body

    return [w for w in pool.map(one, range(RACERS)) if w is not None]


def permissions(store: S3Store, runtime: Runtime) -> Iterator[Check]:
    """Check whether these credentials have the permissions of each command. A refusal is a warning, since roles may be
    limited on purpose.
    """
    name = f"doctor-{runtime.new_id()}"
    versioned = versioning_of(store) != OFF  # if this is unknown, a delete could leave a marker
    tries: dict[str, Callable[[str], object]] = {
        "read": store.get,
        "write": lambda key: _write(store, key),
        "delete": lambda key: _delete(store, key),
    }
    try:
        store.list("l0gc/probe/")
        yield ok("list", "allowed")
    except AccessDeniedError:
        yield failure("list", "the bucket may not be listed", "allow s3:ListBucket: every command needs it")
    for kind_tried, attempt in tries.items():
        if kind_tried == "delete" and versioned:
            yield warning(kind_tried, "not tried: it may leave a delete marker", "try l0gc sweep --max-objects 1")
            continue
        denied = []
        for (kind, folder), commands in NEEDED.items():
            # In a folder, the request is for a name that is never written; an object is only read.
            if kind == kind_tried and not _allowed(attempt, f"{folder}{name}" if folder.endswith("/") else folder):
                denied.append(f"{folder}{'*' if folder.endswith('/') else ''} ({commands})")
        if denied:
            action = {"read": "s3:GetObject", "write": "s3:PutObject", "delete": "s3:DeleteObject"}[kind_tried]
            yield warning(
                kind_tried, f"refused at {'; '.join(denied)}", f"allow {action} there, if these commands run here"
            )
        else:
            yield ok(kind_tried, "allowed wherever a command needs it")


def _write(store: S3Store, key: str) -> None:
    """Try a write that has no effect. If the store ignores its condition, delete the object."""
    store.put_if_match(key, b"", '"0123456789abcdef0123456789abcdef"')
    store.discard(key)


def _delete(store: S3Store, key: str) -> None:
    """Raise `AccessDeniedError` if the answer is successful as a whole, but refuses the key."""
    if any(f.code == DENIED for f in store.delete([key])):
        raise AccessDeniedError(f"{key} may not be deleted")


def _allowed(attempt: Callable[[str], object], key: str) -> bool:
    try:
        attempt(key)
    except AccessDeniedError:
        return False
    except (ObjectNotFoundError, PreconditionFailedError, AmbiguousWriteError):
        pass
    return True


def settings(store: S3Store) -> Iterator[Check]:
    """Check versioning, object lock, lifecycle rules and unfinished uploads."""
    state = versioning_of(store)
    if state == UNKNOWN:
        yield warning("versioning", "may not be read", "allow s3:GetBucketVersioning, or ask the owner of the bucket")
    elif state == OFF:
        yield ok("versioning", "off: what a sweep deletes is gone, and so is its cost")
    else:
        yield ok("versioning", f"{state}: what is deleted or replaced stays as an old version until a rule expires it")
    try:
        lock = bucket.object_lock(store)
    except (StoreError, NotFoundError):
        yield warning("object lock", "may not be read", "allow s3:GetBucketObjectLockConfiguration, or ask its owner")
    else:
        if lock and lock != "enabled":
            yield warning("object lock", lock, "a sweep cannot purge versions before that; use a bucket without it")
        else:
            yield ok("object lock", "no retention by default" if lock else "off")
    try:
        rules = bucket.lifecycle(store)
    except (StoreError, NotFoundError):
        yield warning("lifecycle", "may not be read", "allow s3:GetLifecycleConfiguration, or ask its owner")
    else:
        yield from check_lifecycle(rules, store.config.prefix, versioned=state not in {OFF, UNKNOWN})


def check_lifecycle(rules: list[LifecycleRule], prefix: str, *, versioned: bool) -> Iterator[Check]:
    """Report the rules that conflict with l0gc, since an object's age does not show whether it is needed."""
    expendable = (f"{prefix}l0gc/watermarks/reports/", f"{prefix}l0gc/runs/")
    fights = 0
    for rule in rules:
        touches = rule.prefix.startswith(prefix) or prefix.startswith(rule.prefix)
        if not touches or rule.prefix.startswith(expendable):
            continue
        where = f"rule {rule.name or '(unnamed)'} on {rule.prefix or 'the whole bucket'}"
        if EXPIRES in rule.does:
            fights += 1
            yield failure(
                "lifecycle",
                f"{where} {EXPIRES} by age, whether they are needed or not",
                "take the rule off these folders: M decides what may be deleted",
            )
        elif MOVES in rule.does:
            fights += 1
            yield warning(
                "lifecycle", f"{where} {MOVES}", "exclude l0gc/ and level_zero/: early deletion and retrieval cost more"
            )
    if not fights:
        yield ok("lifecycle", "no rule conflicts with l0gc")
    bare = [
        folder
        for folder in VERSIONED_FOLDERS
        if not all(
            any(does in r.does and f"{prefix}{folder}".startswith(r.prefix) for r in rules)
            for does in (EXPIRES_OLD, EXPIRES_MARKERS)
        )
    ]
    if versioned and bare:
        yield warning(
            "old versions",
            f"no rule expires those below {', '.join(bare)}, and the delete markers there, so deleted bytes stay",
            f"let one rule expire noncurrent versions and expired delete markers below {prefix or 'the whole bucket'}",
        )


# -- the cluster ----------------------------------------------------------------------------------------------------------


def cluster(handles: ClusterHandles) -> Iterator[Check]:
    """Check the cluster in the bucket, if there is one: its format, and the problems that its overview shows."""
    form = check_format(handles.store)
    try:
        o = read_overview(handles)
    except NotInitialisedError:
        yield warning("cluster", "not founded yet", "l0gc init")
        return
    topics = f"{count(o.topics, 'topic')} with {count(o.partitions, 'partition')}"
    log = "an external log" if o.external_log else f"epoch {o.cluster_epoch}, {topics}"
    yield ok("cluster", f"{o.cluster_id}, {log}, {count(o.layout.shards, 'shard')}")
    if form is not None:
        yield ok("format", f"version {form.version}, with {form.etags} ETags")
    wrong = {c.cause for c in o.causes if c.cause in UNSAFE}
    if not wrong:
        if not o.external_log:
            yield ok("journals", f"{count(o.logs.snapshot.journals, 'journal')} can be read, {o.journals} in use")
        yield ok("watermark", f"M = {o.watermark}" if o.published_ms >= 0 else "nothing is published yet")
    for c in o.causes:
        if c.cause in wrong:  # the commands refuse to continue
            safety = c.cause != UNREADABLE_JOURNAL  # the store may allow reading it later
            yield failure(c.cause, c.detail, c.remedy, (SafetyError if safety else StoreError).exit_code)
        elif c.cause not in WAITS_FOR:
            yield warning(c.cause, c.detail, c.remedy)
    yield from (warning(w.cause, w.detail, w.remedy) for w in o.warnings if w.cause != LOCAL_CLOCK)
