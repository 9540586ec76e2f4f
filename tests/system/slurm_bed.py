"""A real Slurm for tests: two virtual nodes with two pretend GPUs each, and accounting, all of it on this machine.

Every daemon listens on loopback and lives in one folder; ports and numbers of jobs (ranks of two nodes meet at a port
that follows from it) differ from process to process, so that several test runs can be on one machine. It needs
Debian's slurm-wlm, slurmdbd, munge and mariadb-server, and root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from prony_node.run.processes import end_with_parent

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db", "sbatch", "sacct")
NODES = ("n0", "n1")
START_S = 180.0


def why_not() -> str | None:
    """Why there can be no Slurm here; None where there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no Slurm to start: {', '.join(missing)} not installed (slurm-wlm, slurmdbd, munge, mariadb-server)"
    return None if os.geteuid() == 0 else "a Slurm is started by root alone"


class SlurmBed:
    """The cluster. `environment` is what its commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = socket.gethostname().partition(".")[0]
        self.ports = _free_ports(5)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in ("state", "spool.n0", "spool.n1", "log", "run", "munge", "dev", "sql"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._start_munge()
        self._write_configuration()
        self._start_accounting()
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        _until(lambda: len(self.call("sinfo", "-hN", "-t", "idle", "-o", "%N").split()) == 2, "two idle nodes")

    def stop(self) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            if "slurmctld" in self._daemons:
                self.call("scancel", "-u", "root")
                _until(lambda: not self.call("squeue", "-h"), "the end of all jobs")
        for name in reversed(list(self._daemons)):
            self.stop_daemon(name, signal.SIGKILL)  # nothing of it is kept

    def call(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else ""

    def start_controller(self) -> None:
        # -i: newer ones want files of state that a killed one had not written yet.
        self._daemon("slurmctld", "slurmctld", "-D", "-i")
        _until(lambda: "UP" in self.call("scontrol", "ping"), "slurmctld")

    def start_node(self, node: str) -> None:
        self._daemon(node, "slurmd", "-D", "-N", node)

    def stop_daemon(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self._daemons.pop(name)
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def keep_state(self, job: str) -> None:
        """Wait until slurmctld has written down that it has this job: killed before, it would give its number again."""
        before_s = time.time()
        self.call("scontrol", "update", f"jobid={job}", "comment=kept")
        path = self.folder / "state" / "job_state"
        _until(lambda: path.exists() and path.stat().st_mtime >= before_s, "the state of the jobs on disk")

    def resume(self, node: str) -> None:
        """Make a node that was set down take jobs again."""
        self.call("scontrol", "update", f"nodename={node}", "state=resume")
        _until(lambda: node in self.call("sinfo", "-hN", "-t", "idle", "-o", "%N").split(), f"{node} idle")

    def _daemon(self, name: str, *argv: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                argv,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: end_with_parent(signal.SIGKILL),  # a test run that is killed leaves nothing
            )

    def _start_munge(self) -> None:
        where = self.folder / "munge"
        where.chmod(0o700)
        (where / "key").write_bytes(os.urandom(1024))
        (where / "key").chmod(0o400)
        socket_path = self.folder / "run" / "munge.sock"
        self._daemon(
            "munged", "munged", "--force", "--foreground", f"--key-file={where / 'key'}", f"--socket={socket_path}",
            f"--pid-file={self.folder / 'run' / 'munged.pid'}", f"--log-file={where / 'log'}",
            f"--seed-file={where / 'seed'}",
        )  # fmt: skip
        _until(socket_path.exists, "munge")

    def _start_accounting(self) -> None:
        sql, quiet = self.folder / "sql", subprocess.DEVNULL
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={sql}", "--skip-test-db",
             "--auth-root-authentication-method=normal"],
            check=True, stdout=quiet, stderr=quiet, timeout=120,
        )  # fmt: skip
        self._daemon(
            "mariadbd", "mariadbd", "--no-defaults", "--user=root", f"--datadir={sql}", f"--socket={sql / 's'}",
            "--bind-address=127.0.0.1", f"--port={self.ports[3]}", f"--pid-file={sql / 'pid'}",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900",
        )  # fmt: skip
        ask = ["mariadb", "--no-defaults", f"--socket={sql / 's'}"]

        def answers(text: str) -> bool:
            return subprocess.run([*ask, "-e", text], stdout=quiet, stderr=quiet, timeout=60).returncode == 0

        _until(lambda: answers("select 1"), "mariadb")
        assert answers(
            "create database acct; create user slurm@localhost identified by 'slurm'; "
            "grant all on acct.* to slurm@localhost"
        )
        self._daemon("slurmdbd", "slurmdbd", "-D")
        _until(lambda: "ok" in self._sacctmgr("show", "cluster"), "slurmdbd")
        self._sacctmgr("-i", "add", "cluster", "bed")
        self._sacctmgr("-i", "add", "account", "bed", "cluster=bed")
        self._sacctmgr("-i", "add", "user", "root", "account=bed", "cluster=bed")

    def limit_jobs(self, most: int) -> None:
        """How many jobs the queue takes of us; -1 is as many as there are."""
        assert self._sacctmgr("-i", "modify", "user", "root", "where", "account=bed", "set", f"MaxSubmitJobs={most}")

    def _sacctmgr(self, *words: str) -> str:
        done = subprocess.run(["sacctmgr", *words], env=self.environment, capture_output=True, text=True, timeout=60)
        return "ok" if done.returncode == 0 else ""

    def _write_configuration(self) -> None:
        for number in range(2):
            device = self.folder / "dev" / f"nvidia{number}"
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # a plain file would be no GPU to Slurm
        munge = self.folder / "run" / "munge.sock"
        cores = os.cpu_count() or 1
        memory = max(500, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**21)
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={self.host} NodeAddr=127.0.0.1 Port={self.ports[1 + number]} "
            f"CPUs={cores} RealMemory={memory} Gres=gpu:2"
            for number, node in enumerate(NODES)
        )
        self._write("gres.conf", f"Name=gpu File={self.folder}/dev/nvidia[0-1]\n")
        self._write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")
        self._write("slurmdbd.conf", f"""\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost={self.host}
DbdAddr=127.0.0.1
DbdPort={self.ports[4]}
SlurmUser=root
LogFile={self.folder}/log/slurmdbd.log
PidFile={self.folder}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={self.ports[3]}
StorageUser=slurm
StoragePass=slurm
StorageLoc=acct
""")  # fmt: skip
        (self.folder / "slurmdbd.conf").chmod(0o600)
        self._write("slurm.conf", f"""\
ClusterName=bed
FirstJobId={os.getpid() % 50000 + 1}
SlurmctldHost={self.host}(127.0.0.1)
SlurmctldPort={self.ports[0]}
AuthType=auth/munge
AuthInfo=socket={munge}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool.%n
SlurmctldPidFile={self.folder}/run/slurmctld.pid
SlurmdPidFile={self.folder}/run/slurmd.%n.pid
SlurmctldLogFile={self.folder}/log/slurmctld.log
SlurmdLogFile={self.folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=15
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
OverTimeLimit=0
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={self.ports[4]}
AccountingStoragePass={munge}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=limits
{nodes}
PartitionName=debug Nodes=n0,n1 Default=YES MaxTime=60 State=UP
""")  # fmt: skip

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


def _until(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < end_s, f"{what} did not come up"
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
