"""Dask clusters for the runs of a sweep: an embedded cluster, a batch system, or an existing scheduler."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import jax

from bayesattn._util.files import user_path
from bayesattn._util.plain_values import PlainMapping
from bayesattn.errors import BayesattnError
from bayesattn.jobs.sweep.plan import Cluster
from bayesattn.samplers.blocks import cores

if TYPE_CHECKING:
    from dask_jobqueue import JobQueueCluster
    from distributed import Client, Security, SpecCluster

CLUSTERS = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "sge": "SGECluster", "lsf": "LSFCluster", "oar": "OARCluster"}
TLS_FILES = ("tls_ca_file", "tls_client_cert", "tls_client_key")
HOST = "127.0.0.1"
"""Address on which the processes of an embedded cluster listen."""
CONNECT_SECONDS = 10
"""Time within which an existing scheduler must answer."""


@contextmanager
def existing_cluster(scheduler: str, security: "PlainMapping | Security | None") -> Iterator[tuple["Client", int]]:
    """Dask client of a running scheduler, and number of threads that each run may use.

    The client does not become Dask's default: a default client that was left over kept xarray from writing files.
    """
    from distributed import Client

    options = _security(security)
    try:
        client = Client(scheduler, timeout=CONNECT_SECONDS, security=options, set_as_default=False)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise ConnectionError(
            f"scheduler must be the address of a running Dask scheduler, such as tcp://host:8786, got {scheduler!r}:"
            f" {error}"
        ) from None
    with client:
        yield client, 1


@contextmanager
def own_cluster(table: Cluster | None, workers: int | None, pending: int) -> Iterator[tuple["Client", int]]:
    """Client, as for `existing_cluster`, of a cluster for `pending` runs: of a batch system if there is a table for it."""
    from distributed import Client

    if table is not None:
        cluster = batch_cluster(table)
        with cluster, Client(cluster, set_as_default=False) as client:
            cluster.scale(jobs=min(table.jobs, pending))
            yield client, 1
        return
    with tempfile.TemporaryDirectory() as scratch:
        cluster, threads = embedded(workers, pending, scratch)
        with cluster, Client(cluster, set_as_default=False) as client:
            yield client, threads


def _security(given: "PlainMapping | Security | None") -> "Security | None":
    """Security options for Dask, whose files can be read; None for Dask's own configuration."""
    from distributed import Security

    if not given:
        return None
    security = given if isinstance(given, Security) else _security_of(given)
    try:
        context = security.get_connection_args("client")["ssl_context"]
        reason: object = "tls_ca_file and tls_client_cert must both be given"
    except OSError as error:
        context, reason = None, error
    if context is None:
        raise BayesattnError(f"security must hold PEM files that belong together, got {security}: {reason}")
    return security


def _security_of(options: PlainMapping) -> "Security":
    from distributed import Security

    if not isinstance(options, Mapping):
        kind = type(options).__name__  # The text of a key must not be printed.
        raise BayesattnError(f"security must be a distributed.Security or a table of its options, got a {kind}")
    for name in TLS_FILES:
        if "-----BEGIN" in str(options.get(name, "")):  # Which must not be printed.
            raise BayesattnError(f"{name} must be a file, got the text of a certificate or key")
    files = {name: user_path(name, options[name]) for name in TLS_FILES if name in options}
    for name, file in files.items():
        if not file.is_file():
            raise FileNotFoundError(errno.ENOENT, f"{name} must be a file", str(file))
    try:
        return Security(**{"require_encryption": True, **options, **{name: str(file) for name, file in files.items()}})
    except (TypeError, ValueError) as error:
        raise BayesattnError(
            f"security must be options of distributed.Security, got {', '.join(options)}: {error}"
        ) from None


def embedded(workers: int | None, pending: int, scratch: str) -> tuple["SpecCluster", int]:
    """Cluster of spawned single-threaded processes, one per core or one per GPU, and number of threads for each run.

    A process sees only its own GPU. All processes listen on 127.0.0.1 only and serve no web page, because Dask executes any
    code that it receives.
    """
    import dask
    from distributed import Nanny, Scheduler, SpecCluster

    devices = gpus()
    most = len(devices) or cores()
    count = min(workers or most, len(devices) or pending, pending)
    here = {"host": HOST, "dashboard_address": f"{HOST}:0", "dashboard": False}
    worker = here | {"nthreads": 1, "memory_limit": 0, "local_directory": scratch}
    nannies = {
        index: {
            "cls": Nanny,
            "options": worker | ({"env": {"CUDA_VISIBLE_DEVICES": devices[index]}} if devices else {}),
        }
        for index in range(count)
    }
    no_pages = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
    with dask.config.set(no_pages):
        cluster = SpecCluster(workers=nannies, scheduler={"cls": Scheduler, "options": here})
    return cluster, 1 if devices else max(1, cores() // count)


def gpus() -> list[str]:
    """Names of the CUDA devices that JAX sees, as in CUDA_VISIBLE_DEVICES; empty if JAX does not use GPUs."""
    if jax.default_backend() != "gpu":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(jax.local_device_count()))
    return [name.strip() for name in names][: jax.local_device_count()]


def batch_cluster(table: Cluster) -> "JobQueueCluster":
    """Cluster of dask-jobqueue from a [cluster] table."""
    import dask_jobqueue

    options = {"cores": 1, "processes": 1, "memory": "4GB"} | table.options
    try:
        return getattr(dask_jobqueue, CLUSTERS[table.kind])(**options)
    except (TypeError, ValueError) as error:
        kind = f"dask_jobqueue.{CLUSTERS[table.kind]}"
        raise BayesattnError(f"cluster.options must be options of {kind}, got {', '.join(options)}: {error}") from None
