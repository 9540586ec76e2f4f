"""The script of a job: bash, the same for every site that runs one. Making it is pure; every value in it is quoted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from prony.launch.container import container_words
from prony.launch.job import ENDED, NODE_ZIP, PRUNED, Job
from prony_node.contract.cost import CARBON, PRICE

NEAR_END = "USR2"  # what a job gets before its time is over; the supervisor answers it with a record
OURS_ALONE = (
    "# what lies in this folder is executed: it must be as its owner made it, whoever may write to the folders above",
    "check_folder() {",
    "    local foreign whose",
    """    whose=(-type l -o ! -user "$(id -u)" -o -perm /022)""",
    """    foreign=$(find "$job" -ignore_readdir_race -maxdepth 1 '(' "${whose[@]}" ')') || foreign=$job""",
    '    if [ -n "$foreign" ]; then',
    """        echo "prony: nothing is run: others may write to ${foreign%%$'\\n'*}, or it is another user's" >&2""",
    "        trap - EXIT  # nothing is written there",
    "        exit 1",
    "    fi",
    "}",
    "check_folder",
)
OWN_FILES = ("mask=$(umask)", "umask go-w  # nobody else changes what this script writes")


def quote(text: str) -> str:
    return shlex.quote(text)


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
    lines += [f"job={quote(str(job.folder))}", *OWN_FILES, *(OURS_ALONE if ours else ())]
    lines += _environment(job)
    lines += _functions(job, step, first_host or _own_name(job), seed or "${SLURM_JOB_ID:-$$}", ours)
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
    lines.append('export PYTHONPATH="$job"/' + NODE_ZIP + (f":{quote(path)}" if path else ""))
    lines.append(f"export PYTHONSAFEPATH=1 PRONY_JOB={quote(job.id)}")
    if environment.modules:
        lines += ["set +u  # the modules of some sites use variables that are not set"]
        lines += [f"module load {quote(module)}" for module in environment.modules]
        lines += ["set -u"]
    return [*lines, ""]


def _functions(job: Job, step: Sequence[str], first_host: str, seed: str, ours: bool) -> list[str]:
    container = container_words(job.site, job.partition, _paths(job))
    program = " ".join(['"$python"', "-m", "prony_node"])
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
        f"""trap 'printf "%s\\n" "$?" >"$job"/{ENDED}' EXIT""",
        "",
        "# on_nodes COUNT LOG WORDS: the node program on the first COUNT nodes, one process a node",
        "on_nodes() {",
        "    local nodes=$1 log=$2 status=0",
        "    shift 2",
        *(["    check_folder"] if ours else []),
        f'    (umask "$mask"; exec {" ".join([*step, *container, program])} "$@") >>"$log" 2>&1 &',
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
        "# run NUMBER NODES FOLDER [FOLDER OF A SMALLER RUN ...]: one run; how it ended is in its record",
        "run() {",
        "    local number=$1 nodes=$2 folder=$3 status=0 smaller",
        "    shift 3",
        '    if [ -n "$ending" ]; then',
        '        echo "prony: run $number does not begin: $ending"',
        "        return 0",
        "    fi",
        '    for smaller in "$@"; do',
        '        [ -f "$smaller"/record.json ] || continue  # to read a FIFO takes for ever',
        """        if grep -qs '"kind": "out-of-memory"' -- "$smaller"/record.json; then""",
        '            echo "prony: run $number is left out: a smaller one ran out of memory"',
        f'            printf "%s\\n" "${{folder##*/}}" >>"$job"/{PRUNED}',
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
        '    on_nodes "$nodes" "$job"/run-"$number".log "$job"/plan-"$number".json "$folder" || status=$?',
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
        return [*_surroundings(job), f'on_nodes {job.nodes} "$job"/answer {words}']
    lines = []
    for number, run in enumerate(job.runs):
        smaller = [str(job.root / run_id) for run_id in run.unless_too_large]
        folders = " ".join(quote(folder) for folder in (str(job.run_folder(run)), *smaller))
        lines.append(f"run {number:03d} {run.nodes} {folders}")
    return [*lines, 'exit "$lost"']


def _surroundings(job: Job) -> list[str]:
    """What the node program does not see of what the site's file says, a line each."""
    environment = job.site.environment
    lines = ["    ls /sys/class/net | sed 's/^/interface /'"]
    if environment.host_suffix:
        lines.append(f"    getent hosts {_own_name(job)} | sed 's/^/address /'")
    if environment.modules:
        lines.append('    printf "modules %s\\n" "${LOADEDMODULES:-}"')
    return ["{", *lines, '} >"$job"/surroundings 2>/dev/null || true']
