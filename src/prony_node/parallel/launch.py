"""Torch's launcher: `python -m prony_node.parallel.launch PLAN FOLDER`, started by the supervisor for several ranks.

It starts a rank a device, ends all of them when one fails, and writes down how each of those ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.cache import MEETING
from prony_node.contract.plugins import missing_library
from prony_node.contract.record import Failure
from prony_node.contract.run_folder import EndedRank, LauncherReport
from prony_node.contract.settings import all_devices, devices_per_node, ranks_per_node
from prony_node.contract.trial import Plan
from prony_node.contract.typed import encode
from prony_node.parallel.place import ADDRESS, RENDEZVOUS, allowed_cores, meeting_place, node_rank

RANK_MODULE = "prony_node.run.rank"
LOGS = "elastic"  # what torch's launcher wants for itself; it is gone at the end
LOOK_EVERY_S = 0.1  # at the ranks
RANKS_A_CORE = 16  # at most: each imports torch
CONNECTS = 5  # times in all of the patience, at least: torch takes up to thrice as long as one connection may


def main(argv: list[str]) -> int:
    plan_file, folder = Path(argv[0]), Path(argv[1])
    plan = Plan.from_json(files.read_plain_json(plan_file))
    ended = LauncherReport()
    try:
        refused = refuse_missing_devices(plan)
        ended = LauncherReport(refused) if refused else launch(plan, plan_file, folder)
    except ModuleNotFoundError as error:  # torch itself, or a part of it
        missing = missing_library((error.name or "?").partition(".")[0])
        ended = LauncherReport(Failure("missing-library", missing))
    finally:
        files.write_whole(folder / files.LAUNCHER, encode(ended))
        files.remove(folder / LOGS)
    return 1 if ended.failure or ended.ranks else 0


def refuse_missing_devices(plan: Plan) -> Failure | None:
    """More devices than this node has, or more processes than its cores can take: said before anything starts."""
    import torch

    settings = plan.trial.settings
    wanted, kind = devices_per_node(settings), str(settings.get("device", "auto")).partition(":")[0]
    spread = f" nodes={settings['nodes']}, {wanted} per node," if "nodes" in settings else ""
    asked = f"devices={all_devices(settings)}{spread}"
    ranks, most = ranks_per_node(settings), RANKS_A_CORE * len(allowed_cores())
    if ranks > most:
        message = f"{asked} is not possible: {ranks} processes, and {most} are the most for the cores of this machine"
        return Failure("request", message)
    if kind == "cpu" or not torch.accelerator.is_available():
        return None
    there = torch.accelerator.device_count()
    if wanted <= there:
        return None
    return Failure(
        "request",
        f"{asked} is not possible: torch finds {there} of kind "
        f"{torch.accelerator.current_accelerator()} here; device=cpu takes processes instead",
    )


def launch(plan: Plan, plan_file: Path, folder: Path) -> LauncherReport:
    """Run all ranks of this node to their end: `failure` of the launcher itself, or `ranks` that failed."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    settings = plan.trial.settings
    nodes, local_size, node = int(settings.get("nodes", 1)), ranks_per_node(settings), node_rank(settings)
    # One node needs no port: torch unpickles what it finds there, and anybody who reaches the port could write it.
    # The folder of the plan is private.
    alone = nodes == 1
    endpoint = str(plan_file.with_name(MEETING)) if alone else meeting_place()
    patience_s = max(1, round(plan.rendezvous_after_s))
    taken = port_in_use(endpoint) if node == 0 and not alone else ""
    if taken:
        return LauncherReport(Failure("rendezvous", taken))
    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=local_size,
        run_id=plan.run_id,
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs={"timeout": patience_s, "join_timeout": patience_s, "is_host": node == 0,
                      "read_timeout": max(1, patience_s // CONNECTS), "store_type": "file" if alone else "tcp"},
        max_restarts=0,
        monitor_interval=LOOK_EVERY_S,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / LOGS)),
        local_addr=os.environ.get(ADDRESS) or ("localhost" if alone else None),
    )  # fmt: skip
    config.numa_options = None  # binding to cores is a setting of the trial, not a habit of the launcher
    module = os.environ.get("PRONY_RANK_MODULE") or RANK_MODULE
    words = ("-m", module, str(plan_file), str(folder))
    try:
        until_met(lambda: elastic_launch(config, sys.executable)(*words), patience_s, folder)
    except ChildFailedError as error:
        ranks = tuple(
            EndedRank(node * local_size + failed.local_rank, failed.pid, failed.exitcode)
            for failed in error.failures.values()
        )
        return LauncherReport(None, ranks)
    except RendezvousError as error:
        said = reason_of(error)
        message = (
            f"the {nodes} node(s) of this run did not all meet at {endpoint} within {patience_s} s ({said}); this is "
            f"node {node}, {socket.gethostname()}"
        )
        return LauncherReport(Failure("rendezvous", message))
    return LauncherReport()


def until_met(start: Callable[[], object], patience_s: float, folder: Path) -> None:
    """Start, and again while the first node does not listen yet: torch gives a connection up sooner than we do."""
    from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

    end_s = time.monotonic() + patience_s
    while True:
        try:
            start()
            return
        except RendezvousConnectionError:
            if time.monotonic() >= end_s or files.rank_folders(folder):
                raise


def reason_of(error: Exception) -> str:
    """What torch says, in one line: the first error of those that led to another says most."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}".rstrip(": ")


def port_in_use(endpoint: str) -> str:
    """Why the first node cannot listen there; empty where it can."""
    host, _, port = endpoint.rpartition(":")
    if int(port) == 0:
        return ""
    with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", int(port)))
            listener.listen(1)
        except OSError as error:
            return (
                f"port {port} of {socket.gethostname()}, where the ranks are to meet, cannot be listened on: "
                f"{error.strerror}; name another in {RENDEZVOUS}"
            )
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
