# sbatch --parsable --output=/scratch/runs/.jobs/prony-20260101T000000-abcdef/job.log --chdir=/home/someone /scratch/runs/.jobs/prony-20260101T000000-abcdef/job.sh
#!/bin/bash -l
#SBATCH --job-name=prony-20260101T000000-abcdef
#SBATCH --partition=gpu
#SBATCH --account=project1
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=10
#SBATCH --cpus-per-task=64
#SBATCH --gres=gpu:h100:4
#SBATCH --export=NONE
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --qos=short

set -euo pipefail

job=/scratch/runs/.jobs/prony-20260101T000000-abcdef
mask=$(umask)
umask go-w  # nobody else changes what this script writes
exec 9<"$job"  # this folder is written to, also if others put another one in its place
own=/proc/$$/fd/9
[ -d "$own" ] || own=$job
whose=(-type l -o ! -user "$(id -u)" -o -perm /022)
foreign=$(find "$own"/ -ignore_readdir_race -maxdepth 1 '(' "${whose[@]}" ')') || foreign=$job
if [ -n "$foreign" ]; then
    echo "prony: nothing is run: others may write to $job or to a file in it, or it is another user's" >&2
    exit 1
fi
python=python3
export GLOO_SOCKET_IFNAME=ib0
export MESSAGE='it'"'"'s $HOME; rm -rf "x"'
export NCCL_DEBUG=WARN
export NCCL_SOCKET_IFNAME=ib0
export PRONY_CARBON_G_PER_KWH=380
export PRONY_PRICE_PER_KWH=0.31EUR
unset PYTHONPATH
export PYTHONSAFEPATH=1 PRONY_JOB=prony-20260101T000000-abcdef
set +u  # the modules of some sites use variables that are not set
module load CUDA/12
module load PyTorch/2.9
set -u

# the beginning of the node program: what it executes must have the hash that stands here
start='"""How the node program of a job begins. The text of this file is part of each script of a job.

`python -c TEXT NODE HASH FILE HASH WORDS`: NODE is the program, FILE its standard input ("" for none). Whoever may
write to a folder above the job can exchange its files, so each is read once and must have the hash in the script.
"""

import hashlib
import os
import runpy
import sys
import tempfile
from pathlib import Path

MOST_BYTES = 2**26  # a larger file is another one
PLACE = "prony-node-"

def read(path: str, wanted: str) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a FIFO keeps nobody waiting
            content = file.read(MOST_BYTES) or b""
    except OSError as error:
        sys.exit(refuse(f"{path} cannot be read: {error.strerror}"))
    if hashlib.sha256(content).hexdigest() != wanted:
        sys.exit(refuse(f"{path} is not what this job was submitted with"))
    return content

def safe_place() -> str:
    """A temporary folder in which nobody else can exchange the program: each folder above it is sticky or closed."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        way = Path(place).resolve()
        modes = [one.stat().st_mode for one in (way, *way.parents) if one.exists()]
        if os.access(way, os.W_OK) and not any(mode & 0o022 and not mode & 0o1000 for mode in modes):
            return place
    sys.exit(refuse(f"others can write to {tempfile.gettempdir()}; set TMPDIR to a folder of yours"))

def refuse(reason: str) -> int:
    print(f"prony: nothing is run: {reason}", file=sys.stderr)
    return 2

def start(node: str, node_hash: str, file: str, file_hash: str, *words: str) -> None:
    program, content = read(node, node_hash), read(file, file_hash) if file else b""
    with tempfile.TemporaryDirectory(prefix=PLACE, dir=safe_place()) as place:
        own = Path(place, "node.zip")
        own.write_bytes(program)
        sys.path.insert(0, str(own))
        from prony_node.contract.cache import hold, remove_temporary

        remove_temporary(own.parent.parent, PLACE)
        hold(own.parent)
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{own}{os.pathsep}{before}" if before else str(own)  # for what it starts
        with tempfile.TemporaryFile() as given:
            given.write(content)
            given.seek(0)
            os.dup2(given.fileno(), 0)
        sys.argv[1:] = words
        runpy.run_module("prony_node", run_name="__main__", alter_sys=True)

if __name__ == "__main__":
    start(*sys.argv[1:])
'
node=SHA256

ending=''  # set once no further run may begin
step=''
lost=0
# said until it is heard: a step that is being started is deaf
tell_near_end() {
    while sleep 2 && kill -USR2 "$step" 2>/dev/null; do :; done &
}
on_near_end() {
    ending='the time limit is near'
    if [ -n "$step" ]; then
        kill -USR2 "$step" 2>/dev/null || true
        tell_near_end
    fi
}
trap on_near_end USR2
trap "ending='the job was ended'" TERM
trap 'printf "%s\n" "$?" >"$own"/ended' EXIT

# on_nodes COUNT LOG FILE HASH WORDS: the node program on the first COUNT nodes, one process per node;
# FILE, which has this hash, is its input
on_nodes() {
    local nodes=$1 log=$2 status=0
    shift 2
    (umask "$mask"; exec srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --export=ALL --input=none --kill-on-bad-exit=0 --cpus-per-task=64 bash -c 'trap "" USR2; PRONY_NODE_RANK="$SLURM_PROCID" exec "$@"' prony-node "$python" -c "$start" "$job"/node.zip "$node" "$@") >>"$log" 2>&1 9<&- &
    step=$!
    [ "$ending" != 'the time limit is near' ] || tell_near_end  # it came while the step was made
    while :; do  # a signal ends `wait` before the step has ended
        wait "$step" && status=0 || status=$?
        kill -0 "$step" 2>/dev/null || break
    done
    step=''
    return "$status"
}

# run NUMBER HASH NODES FOLDER [FOLDER OF A SMALLER RUN ...]: one run, of the plan with this hash;
# how it ended is in its record
run() {
    local number=$1 hash=$2 nodes=$3 folder=$4 status=0 smaller
    shift 4
    if [ -n "$ending" ]; then
        echo "prony: run $number does not begin: $ending"
        return 0
    fi
    for smaller in "$@"; do
        [ -f "$smaller"/record.json ] || continue  # to read a FIFO takes for ever
        if grep -qs '"kind": "out-of-memory"' -- "$smaller"/record.json; then
            echo "prony: run $number is left out: a smaller one ran out of memory"
            printf "%s\n" "${folder##*/}" >>"$own"/pruned
            return 0
        fi
    done
    unset PRONY_RENDEZVOUS
    if [ "$nodes" -gt 1 ]; then  # on one node any free port does: another job may be there too
        local port=$((20000 + (${SLURM_JOB_ID:-$$} * 101 + 10#$number) % 12000))
        PRONY_RENDEZVOUS="$(hostname -s)"i:"$port"
        export PRONY_RENDEZVOUS
    fi
    echo "prony: run $number begins: $folder"
    export PRONY_RUN_LOG="$job"/run-"$number".log
    on_nodes "$nodes" "$own"/run-"$number".log "$job"/plan-"$number".json "$hash" - "$folder" || status=$?
    echo "prony: run $number ended with exit code $status"
    if [ "$status" = 130 ]; then
        ending='the run before was interrupted'
    elif [ ! -e "$folder"/record.json ]; then
        sleep 3 & wait $! || true  # a job that is being ended gets its signal meanwhile
        if [ "$status" != 0 ] && [ ! -e "$folder" ] && [ "${JOB_COMPLETION_INDEX:-0}" = 0 ]; then
            lost=1  # its supervisor never began, and nobody else says so
        fi
    fi
}

{
    ls /sys/class/net | sed 's/^/interface /'
    getent hosts "$(hostname -s)"i | sed 's/^/address /'
    printf "modules %s\n" "${LOADEDMODULES:-}"
} >"$own"/surroundings 2>/dev/null || true
on_nodes 1 "$own"/answer '' '' doctor
