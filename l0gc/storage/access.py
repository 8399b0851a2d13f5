"""Find the bucket and its credentials: botocore decides once, and every client follows its decision.

botocore supports the environment, profiles, partitions, proxies and all kinds of credentials. obstore reads some of
them by different rules, and could send its requests elsewhere. Therefore botocore builds one request, which is not
sent, and obstore gets its values from that request: the URL with the bucket, the region, the proxy, the CA bundle, the
credentials and their expiry. If obstore does not accept one of them, `Access.bulk` is None and boto3 sends all
requests, which is slower but correct.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from l0gc.errors import UsageError
from l0gc.events import event
from l0gc.redaction import keep_secrets_of
from l0gc.storage.answers import DELETE_BODY, NEEDS, check_answer, create_parser
from l0gc.storage.bulk import Bulk, Reach, process
from l0gc.storage.config import StoreConfig, check_endpoint, check_word
from l0gc.storage.connections import Idle, keep_connections_fresh
from l0gc.storage.patience import Patience, patience_with
from l0gc.storage.refusals import (
    ATTEMPTS,
    REDIRECTS,
    Answer,
    no_credentials,
    pause_s,
    row_of,
    row_without_answer,
)

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from botocore.loaders import Loader
    from botocore.session import Session
    from mypy_boto3_s3 import S3Client

_log: Final = logging.getLogger(__name__)
_CONNECT_SECONDS: Final = 5
_OF_AWS: Final = re.compile(
    r"https?://s3[a-z0-9.-]*\.(amazonaws\.(com|com\.cn|eu)|api\.(aws|amazonwebservices\.com\.cn|aws\.eu)"
    r"|(s?c2s|cloud\.adc-e|csp\.hci)\.(ic\.gov|sgov\.gov|uk))"
)
"""AWS's own endpoints, in every partition."""
_SENT: Final = (
    "s3",
    "use_dualstack_endpoint",
    "use_fips_endpoint",
    "request_checksum_calculation",
    "response_checksum_validation",
)
"""Settings of a profile or the environment that executors cannot find on their own, and that are valid on every machine."""
_ONLY_OBSTORES: Final = (
    "AWS_CHECKSUM_ALGORITHM",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
)
"""Variables that obstore reads, that boto3 ignores, and that no argument can override."""
_ONCE: Final = ContextVar("once", default=False)
"""Whether boto3 sends this thread's requests only once."""


class _Built(Exception):
    """Carries a request out of botocore before it is signed."""

    def __init__(self, url: str, region: str, signature: str) -> None:
        self.url, self.region, self.signature = url, region, signature


class Access:
    """The two clients of one bucket, each created on first use. Safe for use by several threads.

    In Python 3.11 a cached property locks while it is computed: `bulk` needs `reach`, and `reach` needs `client`. So
    `_lock` is taken last.

    Args:
        count: called for each request that obstore sends.
    """

    def __init__(self, config: StoreConfig, count: Callable[[str], None]) -> None:
        self._config, self._count = config, count
        self._patience, self._idle = patience_with(config), Idle(config.idle_s)
        self._lock = threading.RLock()
        self.obstacle = ""
        """Why `bulk` is None."""

    @cached_property
    def session(self) -> Session:
        """Return botocore's session, which supplies credentials and settings. One of boto3's would take 30 ms longer
        and add nothing.
        """
        return session_of(self._config)

    @property
    def region(self) -> str | None:
        """Return the configured region, if any."""
        region: str | None = self.session.get_config_variable("region")
        return region

    @property
    def credentials(self) -> Credentials | None:
        """Return the credentials that botocore finds, renewed before they expire; None if it finds none."""
        with self._lock:
            credentials: Credentials | None = self.session.get_credentials()
            return credentials

    @cached_property
    def endpoint_url(self) -> str | None:
        """Return the endpoint that was given or that botocore found; None if it is AWS's own."""
        if self._config.endpoint_url:
            return self._config.endpoint_url
        url = self.client.meta.endpoint_url
        return None if _OF_AWS.fullmatch(url) else url

    def settled(self) -> StoreConfig:
        """Return the settings that another machine needs to send its requests to the same bucket, without secrets or
        machine-specific values.
        """
        said = {name: self.session.get_config_variable(name) for name in _SENT}
        settings = msgspec.json.encode({name: value for name, value in said.items() if value}).decode()
        return msgspec.structs.replace(
            self._config, endpoint_url=self.endpoint_url, region=self.region, settings=settings
        )

    # -- clients ------------------------------------------------------------------------------------------------------

    @cached_property
    def client(self) -> S3Client:
        """Return the boto3 client."""
        import botocore.handlers
        from botocore.config import Config

        with self._lock, _usable(self._config, ValueError):
            client: Any = self.session.create_client(
                "s3",
                endpoint_url=self._config.endpoint_url,
                region_name=self.region or "us-east-1",
                verify=self._ca_bundle,
                config=Config(
                    retries={"mode": "standard", "total_max_attempts": 1},  # `_send_again` decides
                    connect_timeout=min(_CONNECT_SECONDS, self._patience.answer_s),
                    read_timeout=self._patience.answer_s,
                    max_pool_connections=64,
                    user_agent_extra="l0gc",
                ),
            )
        if (credentials := self.credentials) is not None:
            keep_secrets_of(credentials)
            for part in ("access_key", "secret_key", "token"):  # without fetching credentials for this check
                check_word(f"{part} of the credentials ({credentials.method})", vars(credentials).get(part) or "")
        keep_connections_fresh(client, self._idle)
        check_endpoint(client.meta.endpoint_url)
        events = client.meta.events
        events.register_first("needs-retry.s3.HeadBucket", _refuse_a_redirect_to_nowhere)
        events.register("before-call.s3.DeleteObjects", _check_by_md5)
        # botocore would parse each document again to find errors with status 200; `check_answer` finds them, too.
        events.unregister("before-parse.s3.*", getattr(botocore.handlers, "_handle_200_error", None))
        for operation in NEEDS:
            events.register(f"before-parse.s3.{operation}", check_answer)
        events.register_last("before-call.s3", _expect_nothing)
        events.register("needs-retry.s3", partial(_send_again, self._patience))
        for name, value in (("ServerSideEncryption", self._config.sse), ("SSEKMSKeyId", self._config.sse_kms_key_id)):
            for write in ("PutObject", "CreateMultipartUpload") if value else ():
                events.register(f"before-parameter-build.s3.{write}", partial(_set, name, value))
        return cast("S3Client", client)

    @cached_property
    def _ca_bundle(self) -> str:
        """Return the file with the certificates that botocore trusts. Raises `UsageError` if it cannot be read."""
        from botocore.httpsession import get_cert_path

        named = self.session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
        if named and not os.access(named, os.R_OK):
            raise UsageError(f"the CA bundle {named} cannot be read: check AWS_CA_BUNDLE and the profile's ca_bundle")
        return named or str(get_cert_path(True))

    @cached_property
    def reach(self) -> Reach:
        """Return botocore's decisions. Raises botocore's error if it cannot build a request."""
        from botocore.httpsession import ProxyConfiguration
        from botocore.utils import get_environ_proxies

        client, key, own_thread = self.client, "k", threading.get_ident()

        def stop(request: Any, region_name: str, signing_name: str, signature_version: object, **_: Any) -> None:
            if threading.get_ident() == own_thread:  # other threads may send requests with the client
                signing = request.context.get("signing", {})
                name = signing.get("signing_name", signing_name)
                raise _Built(request.url, signing.get("region", region_name), f"{signature_version} for {name}")

        client.meta.events.register_first("before-sign.s3.GetObject", stop)
        try:
            client.get_object(Bucket=self._config.bucket, Key=key)
            raise AssertionError("unreachable")
        except _Built as e:
            url, region, signature = e.url, e.region, e.signature  # `e` itself would be in a cycle with this frame
        finally:
            client.meta.events.unregister("before-sign.s3.GetObject", stop)
        proxy = ProxyConfiguration(get_environ_proxies(client.meta.endpoint_url)).proxy_url_for(url)
        obstacles = [f"{name} is set, which only obstore would read" for name in filter(os.environ.get, _ONLY_OBSTORES)]
        if signature != "s3v4 for s3":
            obstacles.append(f"requests are signed by {signature}")
        if process() != os.getpid():
            obstacles.append("this process was forked from one that used it")
        if (proxy or "").startswith("https:"):
            obstacles.append("the proxy is reached by TLS")
        return Reach(url.removesuffix(f"/{key}"), region, proxy, self._ca_bundle, "; ".join(obstacles))

    @cached_property
    def bulk(self) -> Bulk | None:
        """Return the bucket's client of obstore. If obstore cannot follow botocore's decision, log why and return None."""
        credentials = self.credentials
        if credentials is None:
            raise no_credentials(self._config)
        reach = self.reach
        if not reach.obstacle:
            try:
                return Bulk(self._config, reach, credentials, self._count)
            except (OSError, ValueError) as e:
                reach = msgspec.structs.replace(reach, obstacle=str(e))
        self.without_bulk(reach.obstacle)
        return None

    def without_bulk(self, obstacle: str) -> None:
        """Send all requests through boto3 from now on."""
        self.obstacle = obstacle
        vars(self)["bulk"] = None
        _log.info("boto3 lists and reads, not obstore: %s", obstacle, extra=event("without_obstore", why=obstacle))


@contextmanager
def sent_once(*, once: bool = True) -> Iterator[None]:
    """Send each request of this thread only once in the block, because the caller acts on failures. If `once` is False,
    a request may be sent again.
    """
    before = _ONCE.set(once)
    try:
        yield
    finally:
        _ONCE.reset(before)


@contextmanager
def _usable(config: StoreConfig, error: type[Exception]) -> Iterator[None]:
    """Raise `UsageError` for a profile or settings that botocore cannot use, and `error` for data that it cannot find."""
    try:
        yield
    except error as e:
        source = f"profile {config.profile!r}" if config.profile else "the AWS configuration"
        raise UsageError(f"{source} cannot be used: {e}") from e


def session_of(config: StoreConfig) -> Session:
    """Return a session for `config`. Raises `UsageError` if its profile, or that of AWS_PROFILE, cannot be used."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    class S3Session(Session):
        """Registers botocore's handlers for a service other than S3 with the first client of that service, e.g. STS for
        a role.

        These are 80 of 120 handlers and take half of a session's start-up time.
        """

        def register(self, event_name: str, *handler: Any) -> None:
            if _concerns_s3(event_name):
                super().register(event_name, *handler)
            else:
                vars(self).setdefault("_later", []).append((event_name, *handler))

        def create_client(self, service_name: str, *args: Any, **options: Any) -> Any:
            if service_name != "s3":
                for handler in vars(self).pop("_later", ()):
                    super().register(*handler)
            return super().create_client(service_name, *args, **options)

    with _usable(config, BotoCoreError):
        session = S3Session(profile=config.profile)
        session.register_component("data_loader", _descriptions(session.get_config_variable("data_path")))
        parsers = session.get_component("response_parser_factory")
        parsers.create_parser = partial(create_parser, parsers.create_parser)
        for name, value in msgspec.json.decode(config.settings or "{}").items():
            session.get_component("config_store").set_config_variable(name, value)
        if config.region is not None:
            session.set_config_variable("region", config.region)
        return session


def _concerns_s3(event_name: str) -> bool:
    """Return whether a client of S3 may emit an event with this name: `kind`, `kind.service` or
    `kind.service.operation`.
    """
    kind, *service = event_name.split(".")[:2]
    return kind != "docs" and service in ([], ["s3"], ["*"])


@cache
def _descriptions(data_path: str | None) -> Loader:
    from botocore.loaders import create_loader

    loader = create_loader(data_path)

    def services(type_name: str) -> list[str]:
        """Return the services that have a folder. botocore would look into each of 400 folders, which takes a quarter
        of a client's start-up time.
        """
        names: list[str] = []
        for path in loader.search_paths:
            with suppress(OSError):  # one of them is below HOME, which this user may not be allowed to enter
                names += os.listdir(path)  # noqa: PTH208 - names alone
        return names

    def load_file(path: str) -> Any:
        """Return a decoded JSON file. botocore takes six times as long: half of a client's start-up time."""
        for suffix, unpack in ((".json", bytes), (".json.gz", gzip.decompress)):
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                return msgspec.json.decode(unpack(Path(path + suffix).read_bytes()))
        return None

    loader.list_available_services = services  # type: ignore[method-assign]
    loader.file_loader.load_file = load_file  # type: ignore[assignment]
    return loader


def _check_by_md5(params: dict[str, Any], **_: Any) -> None:
    """Send DeleteObjects with l0gc's own body, and with MD5, the only checksum that every store accepts."""
    params["body"] = DELETE_BODY.get(params["body"])
    params["context"].pop("checksum", None)
    md5 = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(md5).decode()


def _expect_nothing(params: dict[str, Any], **_: Any) -> None:
    """Send the body right after the head, because some proxies ignore or refuse botocore's `Expect: 100-continue`.

    Record for `_send_again` when the first attempt began, and whether others may follow.
    """
    params["headers"].pop("Expect", None)
    params["context"] |= {"began": time.monotonic(), "once": _ONCE.get()}


def _send_again(
    patience: Patience,
    response: tuple[Any, Any] | None,
    caught_exception: Exception | None,
    attempts: int,
    request_dict: dict[str, Any],
    **_: Any,
) -> float | None:
    """Return how many seconds to wait before a request is sent again; None if it is not sent again."""
    sent = request_dict["context"]
    if sent["once"] or attempts >= ATTEMPTS or not patience.allows_again(sent["began"]):
        return None
    from botocore.exceptions import BotoCoreError

    if caught_exception is not None:
        again = isinstance(caught_exception, BotoCoreError) and row_without_answer(caught_exception).again
        return pause_s(attempts, slower=False) if again else None
    assert response is not None
    answer = Answer.of("", response[1])
    row = row_of(answer)
    return pause_s(attempts, slower=row.slower) if answer.status >= REDIRECTS[0] and row.again else None


def _set(name: str, value: str | None, params: dict[str, Any], **_: Any) -> None:
    params[name] = value


def _refuse_a_redirect_to_nowhere(response: tuple[Any, Any] | None, **_: Any) -> None:
    """Stop a redirect without a region, which boto3 would follow for ever by sending HeadBucket to learn the region."""
    from botocore.exceptions import ClientError

    if response is not None:
        answer = Answer.of("HeadBucket", response[1])
        if answer.status in REDIRECTS and not answer.region:
            raise ClientError(response[1], answer.operation)
