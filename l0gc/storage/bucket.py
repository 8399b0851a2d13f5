"""Read a bucket's configuration: the settings that conflict with l0gc, and those that help it. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from l0gc.storage.objectstore import if_there

if TYPE_CHECKING:
    from l0gc.storage.s3 import S3Store


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """An enabled rule; `does` lists its effects on objects whose keys begin with `prefix`."""

    name: str
    prefix: str
    does: frozenset[str]


EXPIRES = "expires objects"
EXPIRES_OLD = "expires old versions"
EXPIRES_MARKERS = "removes delete markers"
ABORTS = "aborts uploads"
MOVES = "moves objects to another storage class"


def lifecycle(store: S3Store) -> list[LifecycleRule]:
    """Return the enabled lifecycle rules; keys are relative to the bucket, not to the URL's prefix.

    Raises:
        StoreError: the store or the credentials do not allow reading them. `object_lock` raises it, too.
    """
    # S3 answers 404 if the bucket has no configuration.
    r = if_there(store.ask, "head", "get_bucket_lifecycle_configuration", "lifecycle") or {}
    return [_rule(rule) for rule in r.get("Rules", []) if rule.get("Status") == "Enabled"]


def object_lock(store: S3Store) -> str:
    """Return the default retention as text, `enabled` for a lock without one, or an empty text without a lock."""
    r = if_there(store.ask, "head", "get_object_lock_configuration", "object-lock") or {}
    lock = r.get("ObjectLockConfiguration", {})
    if lock.get("ObjectLockEnabled") != "Enabled":
        return ""
    keep = lock.get("Rule", {}).get("DefaultRetention", {})
    if not keep:
        return "enabled"
    length = f"{keep['Days']} days" if "Days" in keep else f"{keep.get('Years', '?')} years"
    return f"{keep.get('Mode', '?')}, {length}"


def _rule(rule: Any) -> LifecycleRule:
    does = set()
    expiration = rule.get("Expiration", {})
    if "Days" in expiration or "Date" in expiration:
        does.add(EXPIRES)
    if expiration.get("ExpiredObjectDeleteMarker"):
        does.add(EXPIRES_MARKERS)
    if rule.get("NoncurrentVersionExpiration"):
        does.add(EXPIRES_OLD)
    if rule.get("AbortIncompleteMultipartUpload"):
        does.add(ABORTS)
    if rule.get("Transitions") or rule.get("NoncurrentVersionTransitions"):
        does.add(MOVES)
    where = rule.get("Filter", {})
    if set(where.get("And", where)) - {"Prefix"}:  # a filter by tags or size exempts some objects
        does -= {EXPIRES_OLD, EXPIRES_MARKERS}
    prefix = where.get("Prefix") or where.get("And", {}).get("Prefix") or rule.get("Prefix") or ""
    return LifecycleRule(rule.get("ID", ""), prefix, frozenset(does))
