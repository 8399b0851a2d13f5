"""A connection to a bucket that speaks S3: clients, credentials, counting, and errors as errors of ours.

A conditional write is sent once and never retried in here, so a 412 always means that another write holds the key, or that
the caller knows the first try to be ambiguous. What an error means is in `refusals`.

Every store has its own session, since credentials are not shared; botocore's description of S3 is read once for all of them.
Parsing it is most of what a client costs, and each task on Spark makes a store.
"""

from __future__ import annotations

import email.utils
import gzip
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from l0gc.errors import ObjectNotFoundError, StoreError, UsageError
from l0gc.events import event
from l0gc.storage.config import StoreConfig
from l0gc.storage.refusals import READ_SECONDS, REDIRECTS, Answer, no_answer, refusal

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from botocore.loaders import Loader
    from botocore.session import Session
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
ATTEMPTS: Final = 5
_CONNECT_SECONDS: Final = 5
_OF_AWS: Final = re.compile(r"https://s3[a-z0-9.-]*\.amazonaws\.com(\.cn)?")


class Connection:
    """A bucket, below one prefix; safe for several threads."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.requests: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._counting = threading.Lock()

    # -- clients ------------------------------------------------------------------------------------------------------

    @cached_property
    def session(self) -> Session:
        """Where credentials and the region come from: botocore's, since boto3's takes 30 ms more and adds nothing here."""
        return session_of(self.config)

    @property
    def region(self) -> str | None:
        """The region that is set, if any is."""
        region: str | None = self.session.get_config_variable("region")
        return region

    def _client(self, attempts: int) -> S3Client:
        from botocore.config import Config

        with self._lock:
            client: Any = self.session.create_client(
                "s3",
                endpoint_url=self.config.endpoint_url,
                region_name=self.region or "us-east-1",
                config=Config(
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    connect_timeout=_CONNECT_SECONDS,
                    read_timeout=READ_SECONDS,
                    max_pool_connections=64,
                    user_agent_extra="l0gc",
                    s3={"addressing_style": "path"} if self.config.endpoint_url else None,
                ),
            )
        self.refuse_an_endpoint_of_its_own(client.meta.endpoint_url)
        client.meta.events.register_first("needs-retry.s3.HeadBucket", _refuse_a_redirect_to_nowhere)
        return cast("S3Client", client)

    def refuse_an_endpoint_of_its_own(self, endpoint: str) -> None:
        """One that botocore knows and nobody gave us: obstore, and executors, would go to AWS's bucket of that name."""
        if not self.config.endpoint_url and not _OF_AWS.fullmatch(endpoint):
            raise UsageError(
                f"the AWS configuration names another endpoint for S3 ({urlsplit(endpoint).hostname}); give it as "
                "--endpoint-url or AWS_ENDPOINT_URL_S3, so that every request goes there"
            )

    @cached_property
    def client(self) -> S3Client:
        """The boto3 client for what may be retried."""
        return self._client(ATTEMPTS)

    @cached_property
    def once(self) -> S3Client:
        """The boto3 client for what must be sent once: its failure means something to the caller."""
        return self._client(1)

    def count(self, kind: str) -> None:
        """Another request."""
        with self._counting:
            self.requests[kind] += 1

    # -- errors -------------------------------------------------------------------------------------------------------

    def call(self, kind: str, key: str, call: Callable[[], T], *, conditional: bool = False) -> T:
        """Count a request, do it, and raise what it raises as an error of ours."""
        from botocore.exceptions import BotoCoreError, ClientError

        self.count(kind)
        _log.debug("%s %s", kind, key or "(bucket)", extra=event("request", kind=kind, key=key))
        try:
            return call()
        except ClientError as e:
            error = refusal(self._answer(e, conditional=conditional), self.config, key)
            if isinstance(error, ObjectNotFoundError):
                error.date_ms = date_ms(e.response)
            raise error from e
        except BotoCoreError as e:
            raise no_answer(e, self.config, kind, key, conditional=conditional) from e

    def ask(self, kind: str, operation: str, about: str = "", *, once: bool = False, **fields: Any) -> Any:
        """The answer to an operation of boto3 on the bucket: see `call`. With `once` it is not retried."""

        def request() -> Any:
            return getattr(self.once if once else self.client, operation)(Bucket=self.config.bucket, **fields)

        return self.call(kind, about, request)

    def _answer(self, e: ClientError, *, conditional: bool) -> Answer:
        """The answer; one to a HEAD request, which has no body to name the cause, is asked for again by another request."""
        from botocore.exceptions import BotoCoreError, ClientError

        answer = Answer.of(e.operation_name, e.response, conditional=conditional)
        if answer.operation.startswith("Head") and answer.status in {301, 400, 403}:
            try:
                self.count("list")
                self.client.list_objects_v2(Bucket=self.config.bucket, Prefix=self.config.prefix, MaxKeys=1)
            except ClientError as fuller:
                return Answer.of(answer.operation, fuller.response)
            except BotoCoreError:
                pass
        return answer

    def pages(
        self, operation: str, prefix: str, goes_on: Mapping[str, str], at: Mapping[str, Any], **page: Any
    ) -> Iterator[Any]:
        """The answers to a listing, one for each request.

        Args:
            goes_on: the arguments of the next request, and the field of an answer that each of them has.
            at: those of the first request.
            page: what limits an answer.
        """
        while True:
            answer = self.ask("list", operation, Prefix=self.full_key(prefix), **page, **at)
            yield answer
            if not answer.get("IsTruncated"):
                return
            before, at = at, {name: answer[field] for name, field in goes_on.items() if answer.get(field)}
            if not at or at == before:
                markers = "markers" if len(goes_on) > 1 else "token"
                raise StoreError(f"the listing of {self.full(prefix)} does not go on: the store repeats its {markers}")

    def full(self, key: str) -> str:
        """The key as a URL, for messages."""
        return f"{self.config.url}{key}"

    def full_key(self, key: str) -> str:
        """The key as the bucket knows it."""
        return self.config.prefix + key


def session_of(config: StoreConfig) -> Session:
    """A session for `config`. Raises `UsageError`: its profile, or the one that AWS_PROFILE names, cannot be used."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    try:
        session = Session(profile=config.profile)
        session.register_component("data_loader", _descriptions(session.get_config_variable("data_path")))
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parse_time)
        if config.region is not None:
            session.set_config_variable("region", config.region)
        return session
    except BotoCoreError as e:
        what = f"profile {config.profile!r}" if config.profile else "the AWS configuration"
        raise UsageError(f"{what} cannot be used: {e}") from e


@cache
def _descriptions(data_path: str | None) -> Loader:
    from botocore.loaders import create_loader

    loader = create_loader(data_path)

    def services(type_name: str) -> list[str]:
        """What has a folder; botocore would look into each of 400, a quarter of what a client costs."""
        return [folder.name for path in map(Path, loader.search_paths) if path.is_dir() for folder in path.iterdir()]

    def load_file(path: str) -> Any:
        """What JSON there is, decoded in a sixth of the time that botocore takes: half of what a client costs then."""
        for suffix, opened in ((".json", open), (".json.gz", gzip.open)):
            with suppress(FileNotFoundError), opened(path + suffix, "rb") as file:
                return msgspec.json.decode(file.read())
        return None

    loader.list_available_services = services  # type: ignore[method-assign]
    loader.file_loader.load_file = load_file  # type: ignore[assignment]
    return loader


def _refuse_a_redirect_to_nowhere(response: tuple[Any, Any] | None, **_: Any) -> None:
    """Ends what boto3 would repeat for ever: to learn where a redirect without a region leads, it sends a HeadBucket."""
    from botocore.exceptions import ClientError

    if response is not None:
        answer = Answer.of("HeadBucket", response[1])
        if answer.status in REDIRECTS and not answer.region:
            raise ClientError(response[1], answer.operation)


def parse_time(text: str) -> datetime:
    """A timestamp of an answer, as botocore reads it; in a twentieth of the time if its form is one that S3 writes.

    Raises:
        ValueError: it is not a timestamp.
    """
    with suppress(TypeError, ValueError):
        if text.endswith("Z") and "T" in text:
            return datetime.fromisoformat(text)
        if text.endswith(" GMT"):
            return email.utils.parsedate_to_datetime(text)
    from botocore.utils import parse_timestamp

    found: datetime = parse_timestamp(text)
    return found


def date_ms(response: Any) -> int:
    """The store's clock from the `Date` header (whole seconds; the later end of it is not assumed)."""
    date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        raise StoreError("the store sends no Date header, so ages cannot be judged by its clock")
    return int(email.utils.parsedate_to_datetime(date).timestamp() * 1000)
