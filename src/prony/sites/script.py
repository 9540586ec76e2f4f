"""The script of a job, and the words that start its node program in a container."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from functools import cache
from importlib import resources

from prony.sites.job import ENDED, NODE_ZIP, PRUNED, Job
from prony.sites.node import node_zip
from prony.sites.site import Partition, Site
from prony_node.contract.errors import RequestError
from prony_node.contract.metrics import CARBON, PRICE

# How each engine gives a container the devices of a vendor. Nothing here needs more rights than the devices do.
APPTAINER_GPUS = {"nvidia": ("--nv",), "amd": ("--rocm",), "intel": ("--bind", "/dev/dri")}
RUN_GPUS = {
    ("podman", "nvidia"): ("--device", "nvidia.com/gpu=all"),  # the container device interface
    ("docker", "nvidia"): ("--gpus", "all"),
    ("podman", "amd"): ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "keep-groups"),
    ("docker", "amd"): ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"),
    ("podman", "intel"): ("--device", "/dev/dri", "--group-add", "keep-groups"),
    ("docker", "intel"): ("--device", "/dev/dri", "--group-add", "video"),
}
# Apptainer takes the environment over; the others are told which variables, each by its name alone: a value is then
# never part of a command line. One that is not set outside is not set inside.
PASSED_ON = (
    "USER", "LOGNAME",  # torch asks for a name, and the image may know none for this user
    "PYTHONPATH", "PYTHONSAFEPATH", "PRONY_JOB", "PRONY_RUN_LOG", "PRONY_NODE_RANK", "PRONY_RENDEZVOUS",
    "PRONY_ADDRESS", "PRONY_CARBON_G_PER_KWH", "PRONY_PRICE_PER_KWH", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "OMP_NUM_THREADS",
    "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NODEID", "SLURM_JOB_NODELIST",
)  # fmt: skip


def container_words(site: Site, partition: Partition, paths: Sequence[str]) -> list[str]:
    """The words of the container engine, ready for bash, none where there is no engine; `paths` are seen inside too."""
    container = site.container
    if container.engine == "none":
        return []
    image = image_for(site, partition)
    binds = list(dict.fromkeys([*paths, *container.binds]))
    if container.engine == "apptainer":
        gpu = APPTAINER_GPUS.get(partition.vendor, ()) if partition.accelerators != 0 else ()
        words = ["apptainer", "exec", *gpu, *(word for path in binds for word in ("--bind", path))]
        return [shlex.quote(word) for word in (*words, *container.options, image)]
    return _run_words(site, partition, paths, binds, image)


def _run_words(site: Site, partition: Partition, paths: Sequence[str], binds: Sequence[str], image: str) -> list[str]:
    """Podman and Docker: a new container that is gone afterwards, with the network and shared memory of the node."""
    engine = site.container.engine
    words = [engine, "run", "--rm", "--network=host", "--ipc=host", "--security-opt", "label=disable"]
    words += ["--entrypoint", ""]  # an image of a vendor has one that prints a page
    if partition.accelerators != 0:
        words += RUN_GPUS.get((engine, partition.vendor), ())
    for path in binds:
        words += ["--volume", path if ":" in path else f"{path}:{path}"]
    words += ["--workdir", paths[-1]]
    for name in dict.fromkeys([*PASSED_ON, *sorted(site.environment.variables)]):
        words += ["--env", name]
    ready = [shlex.quote(word) for word in words]
    # Files must be the user's. Root inside is the user outside for a rootless Podman; Docker has to be told.
    ready += ["--user", '"$(id -u):$(id -g)"'] if engine == "docker" else ["--user", "0:0"]
    return [*ready, *(shlex.quote(word) for word in (*site.container.options, image))]


def image_for(site: Site, partition: Partition) -> str:
    """The image for nodes of a partition."""
    image = site.container.image(partition.arch)
    if image is None:
        has = ", ".join(sorted(site.container.images)) or "none"
        raise RequestError(
            f"{site.name} has no image for {partition.arch or 'nodes whose architecture it does not say'} "
            f"(it has {has}); `container: image:` names one with Python and torch"
        )
    return image


NEAR_END = "USR2"  # what a job gets before its time is over; the supervisor answers it with a record
OWN_FOLDER = (
    'exec 9<"$job"  # this folder is written to, also if others put another one in its place',
    "own=/proc/$$/fd/9",
    '[ -d "$own" ] || own=$job',
)
OURS_ALONE = (
    """whose=(-type l -o ! -user "$(id -u)" -o -perm /022)""",
    """foreign=$(find "$own"/ -ignore_readdir_race -maxdepth 1 '(' "${whose[@]}" ')') || foreign=$job""",
    'if [ -n "$foreign" ]; then',
    """    echo "prony: nothing is run: others may write to $job or to a file in it, or it is another user's" >&2""",
    "    exit 1",
    "fi",
)
OWN_FILES = ("mask=$(umask)", "umask go-w  # nobody else changes what this script writes")


def quote(text: str) -> str:
    return shlex.quote(text)


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@cache
def start_text() -> str:
    """What Python executes first on a node: it starts the node program if that is the one of the job."""
    text = (resources.files("prony.sites") / "start_node.py").read_text(encoding="utf-8")
    return text.replace("\n\n\n", "\n\n")  # which YAML would write as one long line


def make_script(
    job: Job,
    header: Sequence[str],
    step: Sequence[str],
    *,
    first_host: str | None = None,
    seed: str | None = None,
    ours: bool = True,
) -> str:
    """`header` follows the first line; `step` are the words, ready for bash, that start a run on its nodes.

    The nodes of a run meet at `first_host`, ready for bash too, or else at the one that runs the script, on a port
    that follows from `seed` and the run. `ours`: it runs as the user who submitted it.
    """
    login = " -l" if job.site.environment.modules else ""  # where `module` is defined
    lines = [f"#!/bin/bash{login}", *header, "", "set -euo pipefail", ""]
    lines += [f"job={quote(str(job.folder))}", *OWN_FILES, *OWN_FOLDER, *(OURS_ALONE if ours else ())]
    lines += _environment(job)
    lines += ["# the beginning of the node program: what it executes must have the hash that stands here"]
    lines += [f"start={quote(start_text())}", f"node={hash_of(node_zip())}", ""]
    lines += _functions(job, step, first_host or _own_name(job), seed or "${SLURM_JOB_ID:-$$}")
    lines += _work(job)
    return "\n".join(lines) + "\n"


def _environment(job: Job) -> list[str]:
    environment = job.site.environment
    variables = dict(environment.variables)
    path = variables.pop("PYTHONPATH", "")
    if environment.interface:
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            variables.setdefault(name, environment.interface)
    for name, value in ((CARBON, job.site.carbon), (PRICE, job.site.price)):
        if value is not None:
            variables.setdefault(name, value)
    lines = [f"python={quote(job.site.python or 'python3')}"]
    lines += [f"export {name}={quote(value)}" for name, value in sorted(variables.items())]
    lines.append(f"export PYTHONPATH={quote(path)}" if path else "unset PYTHONPATH")
    lines.append(f"export PYTHONSAFEPATH=1 PRONY_JOB={quote(job.id)}")
    if environment.modules:
        lines += ["set +u  # the modules of some sites use variables that are not set"]
        lines += [f"module load {quote(module)}" for module in environment.modules]
        lines += ["set -u"]
    return [*lines, ""]


def _functions(job: Job, step: Sequence[str], first_host: str, seed: str) -> list[str]:
    container = container_words(job.site, job.partition, _paths(job))
    program = f'"$python" -c "$start" "$job"/{NODE_ZIP} "$node"'
    return [
        "ending=''  # set once no further run may begin",
        "step=''",
        "lost=0",
        "# said until it is heard: a step that is being started is deaf",
        "tell_near_end() {",
        f'    while sleep 2 && kill -{NEAR_END} "$step" 2>/dev/null; do :; done &',
        "}",
        "on_near_end() {",
        "    ending='the time limit is near'",
        '    if [ -n "$step" ]; then',
        f'        kill -{NEAR_END} "$step" 2>/dev/null || true',
        "        tell_near_end",
        "    fi",
        "}",
        f"trap on_near_end {NEAR_END}",
        "trap \"ending='the job was ended'\" TERM",
        f"""trap 'printf "%s\\n" "$?" >"$own"/{ENDED}' EXIT""",
        "",
        "# on_nodes COUNT LOG FILE HASH WORDS: the node program on the first COUNT nodes, one process per node;",
        "# FILE, which has this hash, is its input",
        "on_nodes() {",
        "    local nodes=$1 log=$2 status=0",
        "    shift 2",
        f'    (umask "$mask"; exec {" ".join([*step, *container, program])} "$@") >>"$log" 2>&1 9<&- &',
        "    step=$!",
        "    [ \"$ending\" != 'the time limit is near' ] || tell_near_end  # it came while the step was made",
        "    while :; do  # a signal ends `wait` before the step has ended",
        '        wait "$step" && status=0 || status=$?',
        '        kill -0 "$step" 2>/dev/null || break',
        "    done",
        "    step=''",
        '    return "$status"',
        "}",
        "",
        "# run NUMBER HASH NODES FOLDER [FOLDER OF A SMALLER RUN ...]: one run, of the plan with this hash;",
        "# how it ended is in its record",
        "run() {",
        "    local number=$1 hash=$2 nodes=$3 folder=$4 status=0 smaller",
        "    shift 4",
        '    if [ -n "$ending" ]; then',
        '        echo "prony: run $number does not begin: $ending"',
        "        return 0",
        "    fi",
        '    for smaller in "$@"; do',
        '        [ -f "$smaller"/record.json ] || continue  # to read a FIFO takes for ever',
        """        if grep -qs '"kind": "out-of-memory"' -- "$smaller"/record.json; then""",
        '            echo "prony: run $number is left out: a smaller one ran out of memory"',
        f'            printf "%s\\n" "${{folder##*/}}" >>"$own"/{PRUNED}',
        "            return 0",
        "        fi",
        "    done",
        "    unset PRONY_RENDEZVOUS",
        '    if [ "$nodes" -gt 1 ]; then  # on one node any free port does: another job may be there too',
        f"        local port=$((20000 + ({seed} * 101 + 10#$number) % 12000))",
        f'        PRONY_RENDEZVOUS={first_host}:"$port"',
        "        export PRONY_RENDEZVOUS",
        "    fi",
        '    echo "prony: run $number begins: $folder"',
        '    export PRONY_RUN_LOG="$job"/run-"$number".log',
        '    on_nodes "$nodes" "$own"/run-"$number".log "$job"/plan-"$number".json "$hash" - "$folder" || status=$?',
        '    echo "prony: run $number ended with exit code $status"',
        '    if [ "$status" = 130 ]; then',
        "        ending='the run before was interrupted'",
        '    elif [ ! -e "$folder"/record.json ]; then',
        "        sleep 3 & wait $! || true  # a job that is being ended gets its signal meanwhile",
        '        if [ "$status" != 0 ] && [ ! -e "$folder" ] && [ "${JOB_COMPLETION_INDEX:-0}" = 0 ]; then',
        "            lost=1  # its supervisor never began, and nobody else says so",
        "        fi",
        "    fi",
        "}",
        "",
    ]


def _own_name(job: Job) -> str:
    """The name of the node that runs the script, ready for bash, on the network that the nodes meet on."""
    suffix = job.site.environment.host_suffix
    return f'"$(hostname -s)"{quote(suffix)}' if suffix else '"$(hostname)"'


def _paths(job: Job) -> list[str]:
    """What must be seen inside of a container: run folders, and where the job is started."""
    return list(dict.fromkeys([str(job.root), job.folder_of_work]))


def _work(job: Job) -> list[str]:
    if job.ask:
        words = " ".join(quote(word) for word in job.ask)
        return [*_surroundings(job), f"on_nodes {job.nodes} \"$own\"/answer '' '' {words}"]
    lines = []
    for number, run in enumerate(job.runs):
        smaller = [str(job.root / run_id) for run_id in run.unless_too_large]
        folders = " ".join(quote(folder) for folder in (str(job.run_folder(run)), *smaller))
        lines.append(f"run {number:03d} {hash_of(run.plan_text.encode())} {run.nodes} {folders}")
    return [*lines, 'exit "$lost"']


def _surroundings(job: Job) -> list[str]:
    """What the node program does not see of what the site's file says, a line each."""
    environment = job.site.environment
    lines = ["    ls /sys/class/net | sed 's/^/interface /'"]
    if environment.host_suffix:
        lines.append(f"    getent hosts {_own_name(job)} | sed 's/^/address /'")
    if environment.modules:
        lines.append('    printf "modules %s\\n" "${LOADEDMODULES:-}"')
    return ["{", *lines, '} >"$own"/surroundings 2>/dev/null || true']
