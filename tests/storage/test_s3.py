"""The S3 store, against a server that works (moto) and against one whose answers the tests write."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import obstore
import pytest
from botocore.exceptions import ClientError
from moto.s3.models import s3_backends

from l0gc.collect.deletion import read_pause
from l0gc.collect.record import read_attempts, read_gc_note, read_summary
from l0gc.errors import (
    BucketNotFoundError,
    CorruptObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnfitError,
    UsageError,
)
from l0gc.keys import CONTROLLER_LOG
from l0gc.limits import SMALL_LIMIT
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.log import Boundary
from l0gc.storage.parallel import Parallel
from l0gc.storage.probe import probe
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.format import check_format
from l0gc.watermark.publication import read_any
from tests.support.cycles import held_by_caller, without_cycle_search
from tests.support.scripted_s3 import SECRET_KEY, Scripted, calls

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture
def store(endpoint: str) -> S3Store:
    store = S3Store(StoreConfig.from_url(f"s3://bucket-{uuid.uuid4()}/a/prefix", endpoint_url=endpoint))
    assert store.create_bucket()
    return store


# -- the place of the bucket --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://b", "b", ""),
        ("s3://b/", "b", ""),
        ("s3://b/p", "b", "p/"),
        ("s3://b/p/q/", "b", "p/q/"),
        ("s3://my.bucket-1/p", "my.bucket-1", "p/"),
    ],
)
def test_a_url_names_a_bucket_and_a_prefix(url: str, bucket: str, prefix: str) -> None:
    config = StoreConfig.from_url(url)
    assert (config.bucket, config.prefix) == (bucket, prefix)
    assert StoreConfig.from_url(config.url) == config


@pytest.mark.parametrize("url", ["", "b/p", "s3:/b", "s3://", "s3:///p", "http://b/p", "s3://b/p?x=1", "s3://b/p#x"])
def test_another_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match=r"must look like s3://bucket"):
        StoreConfig.from_url(url)


def test_an_access_point_goes_by_its_alias() -> None:
    for kind in ("s3:eu-west-1", "s3"):
        with pytest.raises(UsageError, match="names an access point by its ARN; use its alias"):
            StoreConfig.from_url(f"s3://arn:aws:{kind}:123456789012:accesspoint/point/prefix")
    assert StoreConfig.from_url("s3://point-abcd1234-s3alias/p").bucket == "point-abcd1234-s3alias"


@pytest.mark.parametrize("url", ["s3://b/a//c", "s3://b/./c", "s3://b/a/.."])
def test_a_prefix_that_not_every_store_can_keep_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="no part of the prefix may be empty"):
        StoreConfig.from_url(url)


@pytest.mark.parametrize("endpoint_url", ["localhost:9000", "127.0.0.1", "ftp://h", "http://", "http:/h"])
def test_an_endpoint_that_is_no_url_is_a_usage_error(endpoint_url: str) -> None:
    with pytest.raises(UsageError, match="endpoint"):
        S3Store(StoreConfig.from_url("s3://bucket", endpoint_url=endpoint_url)).now_ms()


def test_a_bucket_name_that_cannot_be_is_a_usage_error(endpoint: str) -> None:
    with pytest.raises(UsageError, match=r"No!!") as e:
        S3Store(StoreConfig.from_url("s3://No!!", endpoint_url=endpoint)).put_if_absent("k", b"")
    assert "\n" not in str(e.value)


def test_a_profile_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="profile 'nobody' cannot be used"):
        S3Store(StoreConfig.from_url("s3://b", profile="nobody")).now_ms()


@pytest.mark.parametrize(
    ("region", "kind"),
    [
        ("us-east-1", ""),
        ("cn-north-1", ""),
        ("us-iso-east-1", ""),
        ("us-isob-east-1", ""),
        ("eu-isoe-west-1", ""),
        ("us-isof-south-1", ""),
        ("eusc-de-east-1", ""),
        ("us-east-1", "AWS_USE_FIPS_ENDPOINT"),
        ("eu-west-1", "AWS_USE_DUALSTACK_ENDPOINT"),
    ],
)
def test_aws_itself_is_no_endpoint_of_its_own(monkeypatch: pytest.MonkeyPatch, region: str, kind: str) -> None:
    if kind:
        monkeypatch.setenv(kind, "true")
    assert S3Store(StoreConfig("bucket", region=region)).access.endpoint_url is None


def test_the_endpoint_that_is_given_goes_before_the_environments_for_every_request(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    store.put("k", b"abc")
    assert [page.keys for page in store.scan("")] == [["k"]]
    assert store.get_ranges("k", [(1, 1)]) == [b"b"]


def test_a_config_may_be_sent_to_another_process_and_holds_no_secret(endpoint: str) -> None:
    config = StoreConfig.from_url("s3://b/p", endpoint_url=endpoint, region="eu-west-1")
    body = pickle.dumps(config)
    assert pickle.loads(body) == config
    assert SECRET_KEY.encode() not in body


# -- a store that works -------------------------------------------------------------------------------------------------


def test_the_bucket_is_created_once(store: S3Store) -> None:
    assert not store.create_bucket()


def test_what_is_written_is_read_back_with_the_stores_times(store: S3Store) -> None:
    written = store.put("k", b"body")
    stored = store.get("k")
    assert (stored.body, stored.etag) == (b"body", written.etag)
    assert 0 <= stored.date_ms - stored.modified_ms < 60_000
    assert abs(store.now_ms() - written.date_ms) < 60_000


def test_only_the_allowed_size_of_an_object_is_read(store: S3Store) -> None:
    small, large = "l0gc/attempts/merge.json", "l0gc/journal/0000/log/000"
    for key in (small, large, "level_zero/data/000"):
        store.put(key, bytes(SMALL_LIMIT + 1))
        assert len(store.get(key).body) == SMALL_LIMIT + (key != small)
    store.put(small, bytes(SMALL_LIMIT))
    assert len(store.get(small).body) == SMALL_LIMIT


SMALL: dict[str, Callable[[S3Store], object]] = {
    "the last run of merge": lambda store: read_attempts(store, Parallel(), ["merge"]),
    "what gc noted": read_gc_note,
    "the pause": read_pause,
    "M": read_any,
    "the format": check_format,
    "a log's boundary": lambda store: Boundary(store, CONTROLLER_LOG, Runtime(), 0).read(),
    "a run's summary": lambda store: read_summary(store, "20260101"),
}


@pytest.mark.parametrize("what", SMALL)
def test_an_oversized_object_is_not_read_to_its_end(what: str) -> None:
    with Scripted(200, "", padding=250 << 20) as server:
        with suppress(CorruptObjectError):
            SMALL[what](server.store)
        assert server.requests == ["GET"]
    assert SMALL_LIMIT / 2 < sum(server.sent) < 5 * SMALL_LIMIT  # including the sockets' buffers


def test_keys_are_relative_to_the_prefix(store: S3Store) -> None:
    store.put("x/k", b"1")
    whole = store.below("")
    assert whole.get("a/prefix/x/k").body == b"1"
    whole.put("elsewhere/k", b"2")
    whole.put("a/prefix2/k", b"3")
    assert [k for p in store.scan("") for k in p.keys] == ["x/k"]
    assert list(store.list("").modified_ms) == ["x/k"]
    assert list(store.below("a/").list("prefix/").modified_ms) == ["prefix/x/k"]
    assert store.delete(["x/k"]) == []
    assert sorted(k for p in whole.scan("") for k in p.keys) == ["a/prefix2/k", "elsewhere/k"]


def test_an_object_that_is_not_there_is_answered_with_the_stores_clock(store: S3Store) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"s3://.*/a/prefix/none does not exist") as e:
        store.get("none")
    assert e.value.date_ms is not None
    assert abs(e.value.date_ms - store.now_ms()) < 60_000
    with pytest.raises(ObjectNotFoundError):
        store.get_ranges("none", [(0, 1)])


def test_an_answer_404_keeps_nothing_of_its_callers_alive(store: S3Store) -> None:
    """Each append reads a missing entry; errors that kept their callers alive once held 90 MB in an upload of 1.2 GB."""
    with without_cycle_search():
        assert held_by_caller(lambda: store.get("none"), ObjectNotFoundError)() is None
        assert held_by_caller(lambda: store.head("none"), ObjectNotFoundError)() is None


def test_an_error_of_obstore_keeps_nothing_of_its_callers_alive(store: S3Store) -> None:
    with without_cycle_search():
        assert held_by_caller(lambda: store.get_ranges("none", [(0, 1)]), ObjectNotFoundError)() is None
        nowhere = S3Store(StoreConfig("no-bucket", endpoint_url=store.config.endpoint_url)).access.bulk
        assert nowhere is not None
        assert held_by_caller(lambda: list(nowhere.pages("a/", None)), obstore.exceptions.BaseError)() is None


def test_a_conditional_create_has_one_winner(store: S3Store) -> None:
    store.put_if_absent("k", b"first")
    with pytest.raises(PreconditionFailedError, match="a/prefix/k is not what the write expected"):
        store.put_if_absent("k", b"second")
    assert store.get("k").body == b"first"


def test_a_conditional_replace_has_one_winner(store: S3Store) -> None:
    etag = store.put("k", b"first").etag
    store.put_if_match("k", b"second", etag)
    with pytest.raises(PreconditionFailedError):
        store.put_if_match("k", b"third", etag)
    assert store.get("k").body == b"second"


def test_a_conditional_replace_of_what_is_gone_is_refused(store: S3Store) -> None:
    with pytest.raises(PreconditionFailedError):
        store.put_if_match("none", b"x", '"0"')
    with pytest.raises(ObjectNotFoundError):
        store.get("none")


def test_ranges_come_back_in_the_order_requested(store: S3Store) -> None:
    body = bytes(range(256)) * 16
    store.put("k", body)
    ranges = [(100, 3), (0, 1), (4000, 96), (50, 100)]
    assert store.get_ranges("k", ranges) == [body[s : s + n] for s, n in ranges]


def test_a_file_is_written_whole(store: S3Store, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 9_000_000)  # more than one part
    store.put_file("f", path)
    assert store.get("f").body == path.read_bytes()


def test_a_listing_goes_on_after_the_first_page(store: S3Store) -> None:
    keys = [f"d/{i:05}" for i in range(1300)]
    backend = s3_backends["123456789012"]["aws"]  # written in this process, since so many requests take long
    for k in keys:
        backend.put_object(store.config.bucket, f"a/prefix/{k}", b"x")
    store.requests.clear()
    pages = list(store.scan("d/"))
    assert [k for p in pages for k in p.keys] == keys
    assert [len(p) for p in pages] == [1000, 300]
    assert store.requests["list"] == 3  # one more request confirms the end
    assert [k for p in store.scan("d/", "d/01199~") for k in p.keys] == keys[1200:]
    assert [k for p in store.scan("d/", keys[1200]) for k in p.keys] == keys[1201:]
    assert list(store.scan("d/", "d/9")) == []
    assert list(store.list("d/").modified_ms) == keys
    first = next(iter(store.scan("d/")))
    assert len(first) == 1000
    # The second page has a key that obstore cannot represent; boto3 reads on, and each key comes once.
    for k in ("d/01100//x", "d/01200/../x"):
        store.put(k, b"x")
    assert [k for p in store.scan("d/") for k in p.keys] == sorted([*keys, "d/01100//x", "d/01200/../x"])


FOREIGN = [
    "d/a//b",
    "d/../x",
    "d/./y",
    "d/dir/",
    "d/",
    "d/a b",
    "d/a%7Eb",
    "d/a#b",
    "d/a?b",
    "d/a+b",
    "d/é",
    "d/a\\b",
    "d/~",
]


PLAIN = [k for k in FOREIGN if not k.endswith("/") and "//" not in k and "/." not in k]


@pytest.mark.parametrize("foreign", [FOREIGN, PLAIN, ["d/a//b"], ["d/../x"], ["d/dir/"], ["d/"]], ids=str)
def test_a_scan_yields_every_key_once_and_as_it_is(store: S3Store, foreign: list[str]) -> None:
    """A changed key could be taken for an L0 key that does not exist."""
    keys = sorted([*foreign, "d/000/1", "d/zzz"])
    for k in [*keys, "e/other"]:
        store.put(k, b"")
    assert sorted(k for p in store.scan("d/") for k in p.keys) == keys
    assert sorted(k for p in store.scan("d/", "d/000~") for k in p.keys) == [k for k in keys if k > "d/000~"]
    assert list(store.list("d/").modified_ms) == keys


def test_a_scan_without_a_folder_matches_by_letters(store: S3Store) -> None:
    for k in ("ab/1", "abc/1", "ac/1"):
        store.put(k, b"x")
    assert [k for p in store.scan("ab") for k in p.keys] == ["ab/1", "abc/1"]
    assert [k for p in store.scan("") for k in p.keys] == ["ab/1", "abc/1", "ac/1"]


def test_a_scan_reports_sizes_and_times(store: S3Store) -> None:
    store.put("d/k", b"12345")
    (page,) = store.scan("d/")
    assert page.sizes == [5]
    assert abs(page.modified_ms[0] - store.now_ms()) < 60_000
    assert page.modified_ms[0] // 1000 == store.get("d/k").modified_ms // 1000
    assert page.modified_ms[0] // 1000 == store.list("d/").modified_ms["d/k"] // 1000


def test_a_delete_takes_a_page_of_keys_at_once(store: S3Store) -> None:
    keys = [f"d/{i}" for i in range(30)]
    for k in keys:
        store.put(k, b"x")
    store.requests.clear()
    assert store.delete([*keys[:20], "d/none"]) == []
    assert store.requests["delete"] == 1
    assert sorted(k for p in store.scan("d/") for k in p.keys) == sorted(keys[20:])
    assert store.delete([]) == []


def test_a_store_that_behaves_passes_the_probe(store: S3Store) -> None:
    assert probe(store, Runtime())
    assert list(store.scan("")) == []


def test_a_bucket_that_does_not_exist_is_named(endpoint: str) -> None:
    store = S3Store(StoreConfig.from_url("s3://nobucket/p", endpoint_url=endpoint))
    for call in calls(store):
        with pytest.raises(BucketNotFoundError, match="bucket 'nobucket' does not exist; create it"):
            call()


# -- trials and their traces ----------------------------------------------------------------------------------------------


def everything(store: S3Store) -> tuple[list[str], list[str]]:
    """Return the keys of the bucket, and the keys of its versions and delete markers."""
    bucket = store.config.bucket
    versions = store.client.list_object_versions(Bucket=bucket)
    history = [v["Key"] for v in [*versions.get("Versions", []), *versions.get("DeleteMarkers", [])]]
    return [o["Key"] for o in store.client.list_objects_v2(Bucket=bucket).get("Contents", [])], history


def test_an_object_is_described_without_its_content(store: S3Store) -> None:
    written = store.put("k", b"12345")
    head = store.head("k")
    assert (head.size, head.etag, head.modified_ms) == (5, written.etag, store.get("k").modified_ms)
    with pytest.raises(ObjectNotFoundError):
        store.head("other")


def test_an_etag_is_sent_in_its_quotes_or_without(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    etag = store.put("k", b"1").etag
    sent: list[str] = []
    real = store.client.put_object

    def recorded(**arguments: Any) -> Any:
        sent.append(arguments["IfMatch"])
        return real(**arguments)

    monkeypatch.setattr(store.client, "put_object", recorded)
    store.put_if_match("k", b"2", etag)
    store.quotes_etags = False
    with pytest.raises(PreconditionFailedError):
        store.put_if_match("k", b"3", etag)
    assert sent == [etag, etag.strip('"')]
    assert etag[0] == etag[-1] == '"'


@pytest.mark.parametrize("versioned", [False, True])
def test_a_probe_leaves_nothing_in_a_bucket_and_nothing_in_its_history(store: S3Store, versioned: bool) -> None:
    if versioned:
        store.client.put_bucket_versioning(Bucket=store.config.bucket, VersioningConfiguration={"Status": "Enabled"})
    probe(store, Runtime())
    assert everything(store) == ([], [])


def test_a_refused_probe_cleans_up_without_bulk_deletes(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(key: str, body: bytes) -> object:
        return store.put(key, body)

    def unknown(**_: object) -> object:
        answer = {"Error": {"Code": "NotImplemented"}, "ResponseMetadata": {"HTTPStatusCode": 501, "HTTPHeaders": {}}}
        raise ClientError(answer, "DeleteObjects")  # type: ignore[arg-type]

    monkeypatch.setattr(store, "put_if_absent", careless)
    monkeypatch.setattr(store.client, "delete_objects", unknown)
    with pytest.raises(StoreUnfitError):
        probe(store, Runtime())
    assert everything(store)[0] == []


def test_only_an_empty_bucket_is_deleted(store: S3Store) -> None:
    other = store.below("elsewhere/")
    other.put("k", b"1")
    assert not store.delete_bucket()
    assert other.get("k").body == b"1"
    other.delete(["k"])
    assert store.delete_bucket()
    with pytest.raises(BucketNotFoundError):
        store.now_ms()


def test_a_listing_whose_token_repeats_itself_ends(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store.client.list_objects_v2
    requests = 0

    def stuck(**arguments: Any) -> Any:
        nonlocal requests
        requests += 1
        assert requests < 100, "the listing never ends"
        return {**real(**arguments), "IsTruncated": True, "NextContinuationToken": "again"}

    monkeypatch.setattr(store.client, "list_objects_v2", stuck)
    with pytest.raises(StoreError, match="the store repeats its token"):
        store.list("folder/")


@pytest.mark.parametrize("kind", ["versions", "uploads"])
def test_a_history_whose_markers_repeat_themselves_ends(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    requests = 0

    def stuck(**_: Any) -> Any:
        nonlocal requests
        requests += 1
        assert requests < 100, "the listing never ends"
        return {"IsTruncated": True, "NextKeyMarker": "a", "NextUploadIdMarker": "b", "NextVersionIdMarker": "c"}

    monkeypatch.setattr(store.client, "list_object_versions", stuck)
    monkeypatch.setattr(store.client, "list_multipart_uploads", stuck)
    with pytest.raises(StoreError, match="the store repeats its markers"):
        list(getattr(store, kind)("folder/"))
