"""Checks of the bucket: may we do what the commands do, and does the store keep its promises under a race.

Permissions are tried by requests that cannot take effect: a read of a key that does not exist, a replace of a version that
does not exist, a delete of a name that nobody writes. A store answers 403 to them if it would refuse the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import Final

from l0gc.errors import (
    AccessDeniedError,
    AmbiguousWriteError,
    L0gcError,
    NotFoundError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnfitError,
)
from l0gc.inspect.doctor.checkup import Check, failure, ok, warning
from l0gc.keys import FORMAT
from l0gc.runtime import Runtime
from l0gc.storage import bucket
from l0gc.storage.bucket import (
    ABORTS,
    EXPIRES,
    EXPIRES_MARKERS,
    EXPIRES_OLD,
    MOVES,
    LifecycleRule,
)
from l0gc.storage.objectstore import ENABLED, OFF, ObjectStore
from l0gc.storage.probe import probe
from l0gc.storage.refusals import DENIED
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.format import QUOTED, check_format

RACERS: Final = 8
ROUNDS: Final = 2
SKEW_S: Final = 60
"""A local clock that is wrong by more than this is worth a word; S3 refuses signatures from 15 minutes on."""

NEEDED: Final = {
    ("read", FORMAT): "every command",
    ("read", "l0gc/controller/"): "every command",
    ("read", "l0gc/journal/"): "upload, reconcile, housekeep, read, status",
    ("read", "l0gc/watermarks/"): "compute-watermark, sweep, status",
    ("read", "level_zero/data/"): "reconcile, read",
    ("read", "level_one/data/"): "read",
    ("read", "level_one/index/"): "reconcile, read",
    ("write", "l0gc/controller/"): "init, topic, epoch advance, upload, housekeep",
    ("write", "l0gc/journal/"): "upload, reconcile, housekeep",
    ("write", "l0gc/watermarks/"): "upload, reconcile, housekeep, compute-watermark",
    ("write", "l0gc/runs/"): "sweep",
    ("write", "level_zero/data/"): "upload",
    ("write", "level_one/data/"): "reconcile",
    ("write", "level_one/index/"): "reconcile",
    ("delete", "l0gc/journal/"): "housekeep",
    ("delete", "level_zero/data/"): "sweep",
    ("delete", "level_one/data/"): "vacuum",
    ("delete", "level_one/index/"): "vacuum",
}
"""Which commands need which permission where."""


def reachable(store: S3Store, runtime: Runtime) -> Iterator[Check]:
    """Credentials, the bucket, and the clocks."""
    found = store.session.get_credentials()
    if found is None:
        yield failure(
            "credentials",
            f"no credentials for {store.config.url}",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --profile, or run where an instance role is",
            AccessDeniedError.exit_code,  # as every other command ends
        )
        return
    yield ok("credentials", f"found ({found.method})")
    theirs = store.now_ms()
    yield ok("bucket", f"{store.config.url} answers")
    skew = (runtime.clock.now_ms() - theirs) / 1000
    if abs(skew) <= SKEW_S:
        yield ok("clock", f"within {SKEW_S} s of the store's")
    else:
        yield warning(
            "clock",
            f"{abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} the store's",
            "set the clock (NTP): deletion uses the store's, but records get this one's time, and S3 refuses "
            "signatures that are 15 minutes off",
        )


def promises(store: ObjectStore, runtime: Runtime) -> Iterator[Check]:
    """What safety rests on: the probe of `init`, then conditional writes by eight threads at once."""
    form = None
    with suppress(L0gcError):  # the check of the cluster says what is wrong there
        form = check_format(store)
    try:
        tried = probe(store, runtime)
    except AccessDeniedError as e:
        yield warning("store", f"not tried in full: {e}", "allow it, or run this once as the user that runs init")
        return
    except StoreUnfitError as e:
        yield failure("store", str(e), "keep the cluster on another store: l0gc refuses this one, as init does")
        return
    yield ok("store", ", ".join(tried))
    if form is not None and store.quotes_etags != (form.etags == QUOTED):
        yield failure(
            "etags",
            f"the store does not take ETags as {FORMAT} says ({form.etags})",
            "run l0gc init again: it tries the store, and remembers what it takes",
        )
    lost = race(store, runtime)
    if lost:
        yield failure("race", lost, "keep the cluster on another store: two writers could own one log entry")
    else:
        yield ok("race", f"{ROUNDS} rounds of {RACERS} threads: one winner each, for creates and for replaces")


def race(store: ObjectStore, runtime: Runtime) -> str:
    """Let threads compete for one key; what went wrong, or nothing."""
    folder = f"l0gc/probe/{runtime.new_id()}/"
    keys = [f"{folder}{n}" for n in range(ROUNDS)]
    try:
        with ThreadPoolExecutor(RACERS) as pool:
            for key in keys:
                for kind in ("create", "replace"):
                    etag = "" if kind == "create" else store.get(key).etag
                    winners = _winners(pool, store, key, etag)
                    body = store.get(key).body
                    if len(winners) > 1 or (winners and body != winners[0]):
                        return f"{len(winners)} threads got success for their conditional {kind} of one key"
    finally:
        store.discard(folder)
    return ""


def _winners(pool: ThreadPoolExecutor, store: ObjectStore, key: str, etag: str) -> list[bytes]:
    start = Barrier(RACERS)

    def one(n: int) -> bytes | None:
        body = f"{n} {etag}".encode()
        start.wait()
        try:
            if etag:
                store.put_if_match(key, body, etag)
            else:
                store.put_if_absent(key, body)
        except (PreconditionFailedError, AmbiguousWriteError):
            return None
        return body

    return [w for w in pool.map(one, range(RACERS)) if w is not None]


def permissions(store: S3Store, runtime: Runtime) -> Iterator[Check]:
    """May these credentials do what each command does; a refusal is a warning, since roles are cut down on purpose."""
    name = f"doctor-{runtime.new_id()}"
    versioned = _versioning(store) != OFF  # if that cannot be read, a delete could leave a marker
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
    for what, attempt in tries.items():
        if what == "delete" and versioned:
            yield warning(what, "not tried: it may leave a delete marker", "try l0gc sweep --max-objects 1")
            continue
        denied = []
        for (kind, place), commands in NEEDED.items():
            # A folder gets a name that nobody writes; an object is only read.
            if kind == what and not _allowed(attempt, f"{place}{name}" if place.endswith("/") else place):
                denied.append(f"{place}{'*' if place.endswith('/') else ''} ({commands})")
        if denied:
            action = {"read": "s3:GetObject", "write": "s3:PutObject", "delete": "s3:DeleteObject"}[what]
            yield warning(what, f"refused at {'; '.join(denied)}", f"allow {action} there, if these commands run here")
        else:
            yield ok(what, "allowed wherever a command needs it")


def _write(store: S3Store, key: str) -> None:
    """Takes no effect, but on a store that ignores conditions: what it has written there goes again."""
    store.put_if_match(key, b"", '"0123456789abcdef0123456789abcdef"')
    store.discard(key)


def _delete(store: S3Store, key: str) -> None:
    """Raises `AccessDeniedError` if the answer, a success as a whole, refuses the key."""
    if any(f.code == DENIED for f in store.delete([key])):
        raise AccessDeniedError(f"{key} may not be deleted")


def _allowed(attempt: Callable[[str], object], key: str) -> bool:
    try:
        attempt(key)
    except AccessDeniedError:
        return False
    except (ObjectNotFoundError, PreconditionFailedError, AmbiguousWriteError):
        return True
    return True


def _versioning(store: S3Store) -> str:
    try:
        return store.versioning()
    except StoreError:
        return ""


def settings(store: S3Store) -> Iterator[Check]:
    """Versioning, object lock, lifecycle rules and unfinished uploads."""
    state = _versioning(store)
    if not state:
        yield warning("versioning", "may not be read", "allow s3:GetBucketVersioning, or ask the owner of the bucket")
    elif state == OFF:
        yield ok("versioning", "off: what a sweep deletes is gone, and so is its cost")
    else:
        yield warning(
            "versioning",
            f"{state}: a sweep leaves old versions behind, which cost as before",
            "expire noncurrent versions below level_zero/data/ with a lifecycle rule, or l0gc sweep --purge-versions",
        )
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
        yield from check_lifecycle(rules, store.config.prefix, versioned=state == ENABLED)


def check_lifecycle(rules: list[LifecycleRule], prefix: str, *, versioned: bool) -> Iterator[Check]:
    """The rules that would fight l0gc: an object's age does not show whether it is needed."""
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
                "remove it: M says what may go",
            )
        elif MOVES in rule.does:
            fights += 1
            yield warning(
                "lifecycle", f"{where} {MOVES}", "exclude l0gc/ and level_zero/: early deletion and retrieval cost more"
            )
    if not fights:
        helps = any(r.does & {EXPIRES_OLD, EXPIRES_MARKERS, ABORTS} for r in rules)
        text = "no rule fights l0gc"
        if versioned and not helps:
            text += "; none expires old versions either"
        yield ok("lifecycle", text)
