"""Kills a command at one of its requests, and checks the cluster afterwards.

A point is a request's number and whether the command dies before the server sees it or after the server has answered.
Commands in their own process die by SIGKILL, or by another signal while all requests from there on hang. The Spark
commands run in this process, in which the proxy plays dead instead: from that request on, no request of theirs or of
their executors reaches the server.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from unittest import mock

import obstore
from obstore.store import S3Store as Obstore

from l0gc.cli.main import main
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import L0gcError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from tests.crash.cases import FILE, Case
from tests.crash.checks import BrokenError, check, look
from tests.crash.readers import readers
from tests.crash.scenes import INPUT, Scene
from tests.crash.tables import environment
from tests.support.cli import l0gc
from tests.support.deep import deep_findings
from tests.support.memory_store import FakeClock, MemoryStore, memory_cluster
from tests.support.outcomes import DieAt, HangAt, KillAt, MeetAt, Request
from tests.support.proxy import Proxy
from tests.support.spark import shared_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHEN: Final = ("before", "after")
_TRIES: Final = 3
_PROCESS_S: Final = 120
STOPS_WITHIN_S: Final = 10.0
_NOTICED_S: Final = 0.5
"""How many seconds a request hangs until the signal comes, so that the command waits for it."""
_BUCKET: Final = "l0gc-crash"
_PROCESSES: Final = multiprocessing.get_context("forkserver")
"""Gives each command a process that has imported everything, since the imports take longer than most commands."""
_PROCESSES.set_forkserver_preload(
    [__name__, "boto3", "l0gc.streamlog.level_one.merge", "l0gc.collect.vacuum", "l0gc.integrations.iceberg.sync"]
)


def points_of(requests: list[Request]) -> list[tuple[int, str]]:
    """Return every point of a command that makes these requests."""
    return [(r.number, when) for r in requests for when in WHEN]


def _to_its_end(process: ForkServerProcess) -> None:
    """Start the process and wait for it; kill it if it does not end."""
    process.start()
    try:
        process.join(_PROCESS_S)
    finally:
        process.kill()
        process.join()


def _act(others: Callable[[], None], environment: dict[str, str]) -> None:
    """Run `others` in this process, because Arrow connects to nothing while its process waits for an answer."""
    os.environ.clear()
    os.environ.update(environment)
    others()


def _command(args: Sequence[str], environment: dict[str, str], errors: Path) -> None:
    """Run the command in this process, as its user would start it."""
    os.environ.clear()
    os.environ.update(environment)
    with Path(os.devnull).open() as nothing, errors.open("w") as err:
        os.dup2(nothing.fileno(), 0)
        os.dup2(err.fileno(), 1)
        os.dup2(err.fileno(), 2)
    sys.argv = ["l0gc", *args]
    main()


class Bench:
    """Tries one point after another in a bucket, each in its own prefix, and starts Spark once it is needed."""

    def __init__(self, server: SeaweedFS, scratch: Path) -> None:
        self._server = server
        self._scratch = scratch
        self._stack = contextlib.ExitStack()
        self._scenes: dict[str, Scene] = {}
        self._spark: SparkSession | None = None
        self._tried = 0
        self._begin_anew()
        self._input = scratch / "input"

    def _begin_anew(self) -> None:
        """Take a prefix that was never used: this server lists a prefix more slowly if many objects were deleted there."""
        server, self._tried = self._server, self._tried + 1
        self._config = StoreConfig(_BUCKET, f"cluster-{self._tried}/", server.endpoint_url, server.region)
        self._bulk = Obstore(
            _BUCKET,
            prefix=self._config.prefix,
            config={"aws_endpoint_url_s3": server.endpoint_url},
            region=server.region,
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
            client_options={"allow_http": True},
        )

    def __enter__(self) -> Self:
        self._input.write_bytes(b"".join(line + b"\n" for line in INPUT))
        with self._environment():
            S3Store(self._config).create_bucket()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _environment(self) -> contextlib.AbstractContextManager[object]:
        """Set the variables that name the server, as for a user of the command line."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "L0GC_"))}
        here = self._server.environment() | {"L0GC_URL": self._config.url}
        here |= environment(str(self._scratch), _BUCKET, self._tried)
        return mock.patch.dict(os.environ, clean | here, clear=True)

    def spark(self) -> SparkSession:
        """The one session for everything that needs Spark."""
        if self._spark is None:
            self._spark = self._stack.enter_context(shared_spark())
        return self._spark

    # -- the points ---------------------------------------------------------------------------------------------------

    def requests_of(self, case: Case) -> list[Request]:
        """Return the requests of an undisturbed run, which is checked like any other."""
        self._begin_anew()
        with self._environment():
            scene, before = self._prepare(case)
            with Proxy(self._server.endpoint_url, clock_ahead_s=case.clock_ahead_s) as proxy:
                self._run_here(case, proxy)
                proxy.settle()
                requests = list(proxy.requests)
            self._check(case, scene, before, complete=True, cleaned=self._clean(case))
        return requests

    def try_point(
        self, case: Case, n: int, when: str, *, verify: bool, number: signal.Signals = signal.SIGKILL
    ) -> Request | None:
        """Kill the command at its n-th request, run it again until it succeeds, and check.

        Args:
            number: any other signal than SIGKILL comes while that request hangs.

        Returns: / The request at which it died; None if it sent fewer, and ended well.

        Raises:
            BrokenError: a condition that must hold does not.
        """
        self._begin_anew()
        with self._environment():
            return self._try_point(case, n, number, after=when == "after", verify=verify)

    def meet(self, case: Case, n: int, others: Callable[[], None]) -> Request | None:
        """Have others act before the n-th request of the command, which then continues; and check.

        Raises:
            BrokenError: a condition that must hold does not.
        """
        self._begin_anew()
        with self._environment():
            scene, before = self._prepare(case)
            acted: list[int | None] = []
            with (
                Proxy(self._server.endpoint_url, clock_ahead_s=case.clock_ahead_s + 1) as theirs,
                Proxy(
                    self._server.endpoint_url,
                    behaviour := MeetAt(n, lambda: acted.append(self._others(others, theirs.endpoint_url))),
                    clock_ahead_s=case.clock_ahead_s,
                ) as proxy,
            ):
                self._run_here(case, proxy)
                proxy.settle()
            try:
                if any(acted):
                    raise BrokenError(f"the others ended with {acted}")
                self._check(case, scene, before, complete=True, cleaned=self._clean(case))
            except (BrokenError, L0gcError) as e:
                raise BrokenError(f"{case.name} met others at request {n} ({behaviour.fired}): {e}") from e
        return behaviour.fired

    def _others(self, others: Callable[[], None], endpoint_url: str) -> int | None:
        process = _PROCESSES.Process(target=_act, args=(others, {**os.environ, "AWS_ENDPOINT_URL_S3": endpoint_url}))
        _to_its_end(process)
        return process.exitcode

    def _try_point(self, case: Case, n: int, number: signal.Signals, *, after: bool, verify: bool) -> Request | None:
        scene, before = self._prepare(case)
        reading = readers(self._config, scene.records, f"{case.name}:{n}:{after}")
        died_at: Request | None = None
        try:
            with reading if case.cleaned else contextlib.nullcontext():
                if number != signal.SIGKILL:
                    died_at = self._stop(case, n, number, after=after)
                else:
                    died_at = (self._die_here if case.shared else self._kill)(case, n, after=after)
                self._check(case, scene, before, complete=False)
                if self._clean(case):
                    self._check(case, scene, before, complete=False, cleaned=True)
                    if verify:
                        self._verify("--min-age", "0s")
                with Proxy(self._server.endpoint_url, clock_ahead_s=case.clock_ahead_s) as proxy:
                    self._repeat(case, proxy)
                    proxy.settle()
                self._check(case, scene, before, complete=True, cleaned=self._clean(case))
            if verify:
                self._verify()
        except (BrokenError, L0gcError) as e:
            where = f"{'after' if after else 'before'} request {n} ({died_at})"
            raise BrokenError(f"{case.name} killed {where}: {type(e).__name__}: {e}") from e
        return died_at

    def _prepare(self, case: Case) -> tuple[Scene, int]:
        """Put the case's scene into the bucket; return it, and the M that is published in it."""
        if case.name not in self._scenes:
            self._scenes[case.name] = case.build(self._scratch)
        scene = self._scenes[case.name]
        for key, body in scene.objects.items():
            obstore.put(self._bulk, key, body, use_multipart=False)
        for number, args in enumerate(case.before, start=1):
            ahead_s = case.clock_ahead_s * number // len(case.before)
            with Proxy(self._server.endpoint_url, clock_ahead_s=ahead_s) as proxy:
                l0gc(*args, "--endpoint-url", proxy.endpoint_url)
        return scene, look(self._mirror()).watermark

    def _mirror(self) -> ClusterHandles:
        """Return the present cluster in memory, where reading is quick and changes nothing."""
        store = MemoryStore(FakeClock(time.time_ns() // 1_000_000))
        for page in obstore.list(self._bulk):
            for o in page:
                store.put(o["path"], bytes(obstore.get(self._bulk, o["path"]).bytes()))
        return memory_cluster(store, bootstrap=False)

    def _args(self, case: Case) -> list[str]:
        return [str(self._input) if a == FILE else a for a in case.args]

    def _kill(self, case: Case, n: int, *, after: bool) -> Request | None:
        behaviour = KillAt(n, after=after, pid=lambda: process.pid or 0)
        errors = self._scratch / "errors"
        with Proxy(self._server.endpoint_url, behaviour, clock_ahead_s=case.clock_ahead_s) as proxy:
            environment = {**os.environ, "AWS_ENDPOINT_URL_S3": proxy.endpoint_url}
            process: ForkServerProcess = _PROCESSES.Process(
                target=_command, args=(self._args(case), environment, errors)
            )
            _to_its_end(process)
            proxy.settle()
        expected = 0 if behaviour.fired is None else -9
        if process.exitcode != expected:
            raise BrokenError(
                f"{case.name} at request {n} ({behaviour.fired}) ended with {process.exitcode}: {errors.read_text()}"
            )
        return behaviour.fired

    def _stop(self, case: Case, n: int, number: signal.Signals, *, after: bool) -> Request | None:
        """Send the signal while the n-th request hangs; check the command's note, and that it ends in time with the
        signal's code.
        """
        behaviour, errors = HangAt(n, after=after), self._scratch / "errors"
        with Proxy(self._server.endpoint_url, behaviour, clock_ahead_s=case.clock_ahead_s) as proxy:
            environment = {**os.environ, "AWS_ENDPOINT_URL_S3": proxy.endpoint_url}
            process = _PROCESSES.Process(target=_command, args=(self._args(case), environment, errors))
            process.start()
            while not behaviour.hung.wait(0.1) and process.is_alive():
                pass
            time.sleep(_NOTICED_S)
            took, code, alive = time.monotonic(), 128 + number, process.is_alive()
            if alive:
                os.kill(process.pid or 0, number)
            process.join(_PROCESS_S)
            took = time.monotonic() - took
            process.kill()
            process.join()
        said = errors.read_text()
        if alive and (process.exitcode != code or took > STOPS_WITHIN_S or "l0gc: stop" not in said):
            raise BrokenError(
                f"{case.name}, whose request {n} ({behaviour.fired}) hung, ended {took:.1f} s after {number.name} with "
                f"{process.exitcode}: {said}"
            )
        return behaviour.fired

    def _die_here(self, case: Case, n: int, *, after: bool) -> Request | None:
        behaviour = DieAt(n, after=after)
        with Proxy(self._server.endpoint_url, behaviour, clock_ahead_s=case.clock_ahead_s) as proxy:
            with contextlib.suppress(L0gcError):
                self._run_here(case, proxy)
            proxy.settle()
        return behaviour.fired

    def _run_here(self, case: Case, proxy: Proxy) -> None:
        if case.shared:
            self.spark()
        l0gc(*self._args(case), "--endpoint-url", proxy.endpoint_url)

    def _repeat(self, case: Case, proxy: Proxy) -> None:
        for left in reversed(range(_TRIES)):
            try:
                return self._run_here(case, proxy)
            except case.done:
                return None
            except L0gcError:
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    # -- invariants -----------------------------------------------------------------------------------------------------

    def _check(self, case: Case, scene: Scene, watermark_before: int, *, complete: bool, cleaned: bool = False) -> None:
        mirror = self._mirror()
        view = look(mirror)
        before, coming, may_go = watermark_before, case.coming, case.may_go
        check(view, scene, watermark_before=before, coming=coming, complete=complete, may_go=may_go, hole=case.hole)
        if complete:
            case.achieved(view, scene)
        if cleaned:
            case.left(view)
            if found := deep_findings(mirror):
                raise BrokenError(f"after {case.cleaned[-1][0]}: {found[0]}")

    def _clean(self, case: Case) -> bool:
        """Run the case's cleaning commands; return whether it has any."""
        for args in case.cleaned:
            l0gc(*args)
        return bool(case.cleaned)

    def _verify(self, *options: str) -> None:
        self.spark()
        l0gc("verify", "--deep", *options)
