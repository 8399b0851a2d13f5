"""Report the executors that a session requests and that a standalone master offers, and how many tasks may run at once."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

from pyspark import SparkContext

from l0gc.formatting import count
from l0gc.spark.jobs import JOB_ERRORS
from l0gc.spark.master import STANDALONE, is_local

_DYNAMIC: Final = "spark.dynamicAllocation"


class Worker(NamedTuple):
    """The resources that a worker offers to executors. A master does not report how much of them is in use."""

    cores: int
    memory_mb: int


def workers_of(context: SparkContext) -> list[Worker]:
    """Return the live workers that a standalone master lists; none for another kind of master, or if it does not
    answer.
    """
    url, jvm = context.master or "", context._jvm
    workers: list[Worker] = []
    if not url.startswith(STANDALONE) or jvm is None:
        return workers
    with suppress(*JOB_ERRORS):
        environment: Any = context._jsc.sc().env()
        # The field is read directly: to call a method, py4j inspects all methods, and some have types that Spark lacks.
        field = jvm.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField("rpcEnv")
        field.setAccessible(True)
        address = jvm.org.apache.spark.rpc.RpcAddress.fromSparkURL(url.partition(",")[0])
        request = getattr(getattr(jvm, "org.apache.spark.deploy.DeployMessages$RequestMasterState$"), "MODULE$")
        kind = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.Object"))
        state = field.get(environment).setupEndpointRef(address, "Master").askSync(request, kind)
        workers += [Worker(w.cores(), w.memory()) for w in state.workers() if w.isAlive()]
    return workers


def asked_and_offered(context: SparkContext) -> str:
    """Return a phrase about the resources that the session requests for an executor, and those of its cluster's
    workers.
    """
    conf, workers = context.getConf(), workers_of(context)
    cores = conf.get("spark.executor.cores")
    asked = f"an executor of {conf.get('spark.executor.memory', '1g')} (spark.executor.memory)"
    if cores is not None:
        asked += f" and {count(int(cores), 'core')} (spark.executor.cores)"
    if not workers:
        return f"it asks for {asked}"
    memory, cores_there = max((w.memory_mb, w.cores) for w in workers)
    return (
        f"it asks for {asked}, and the largest of {count(len(workers), 'worker')} has {memory}m and "
        f"{count(cores_there, 'core')}, which other applications may use"
    )


def cores_of(context: SparkContext) -> int:
    """Return how many tasks may run at once. With dynamic allocation, this includes executors that the session may
    still get.
    """
    conf, now = context.getConf(), context.defaultParallelism
    dynamic = conf.get(f"{_DYNAMIC}.enabled", "false") == "true"
    if not dynamic or is_local(context.master or "") or conf.get("spark.default.parallelism") is not None:
        return now
    per_executor, most = conf.get("spark.executor.cores"), conf.get(f"{_DYNAMIC}.maxExecutors")
    limits = [int(limit) for limit in (conf.get("spark.cores.max"),) if limit is not None]
    if most is not None and per_executor is not None:
        limits.append(int(most) * int(per_executor))
    if workers := workers_of(context):
        limits.append(sum(w.cores for w in workers))
    return max(now, min(limits, default=now))
