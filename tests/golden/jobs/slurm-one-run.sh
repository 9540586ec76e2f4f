# sbatch --parsable --output=/scratch/runs/.jobs/prony-20260101T000000-abcdef/job.log --chdir=/home/someone /scratch/runs/.jobs/prony-20260101T000000-abcdef/job.sh
#!/bin/bash
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
#SBATCH --signal=B:USR2@60

set -euo pipefail

job=/scratch/runs/.jobs/prony-20260101T000000-abcdef
mask=$(umask)
umask go-w  # nobody else changes what this script writes
# what lies in this folder is executed: it must be as its owner made it, whoever may write to the folders above
check_folder() {
    local foreign whose
    whose=(-type l -o ! -user "$(id -u)" -o -perm /022)
    foreign=$(find "$job" -ignore_readdir_race -maxdepth 1 '(' "${whose[@]}" ')') || foreign=$job
    if [ -n "$foreign" ]; then
        echo "prony: nothing is run: others may write to ${foreign%%$'\n'*}, or it is another user's" >&2
        trap - EXIT  # nothing is written there
        exit 1
    fi
}
check_folder
python=python3
export PYTHONPATH="$job"/node.zip
export PYTHONSAFEPATH=1 PRONY_JOB=prony-20260101T000000-abcdef

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
trap 'printf "%s\n" "$?" >"$job"/ended' EXIT

# on_nodes COUNT LOG WORDS: the node program on the first COUNT nodes, one process a node
on_nodes() {
    local nodes=$1 log=$2 status=0
    shift 2
    check_folder
    (umask "$mask"; exec srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --export=ALL --input=none --kill-on-bad-exit=0 --cpus-per-task=64 bash -c 'trap "" USR2; PRONY_NODE_RANK="$SLURM_PROCID" exec "$@"' prony-node "$python" -m prony_node "$@") >>"$log" 2>&1 &
    step=$!
    [ "$ending" != 'the time limit is near' ] || tell_near_end  # it came while the step was made
    while :; do  # a signal ends `wait` before the step has ended
        wait "$step" && status=0 || status=$?
        kill -0 "$step" 2>/dev/null || break
    done
    step=''
    return "$status"
}

# run NUMBER NODES FOLDER [FOLDER OF A SMALLER RUN ...]: one run; how it ended is in its record
run() {
    local number=$1 nodes=$2 folder=$3 status=0 smaller
    shift 3
    if [ -n "$ending" ]; then
        echo "prony: run $number does not begin: $ending"
        return 0
    fi
    for smaller in "$@"; do
        [ -f "$smaller"/record.json ] || continue  # to read a FIFO takes for ever
        if grep -qs '"kind": "out-of-memory"' -- "$smaller"/record.json; then
            echo "prony: run $number is left out: a smaller one ran out of memory"
            printf "%s\n" "${folder##*/}" >>"$job"/pruned
            return 0
        fi
    done
    unset PRONY_RENDEZVOUS
    if [ "$nodes" -gt 1 ]; then  # on one node any free port does: another job may be there too
        local port=$((20000 + (${SLURM_JOB_ID:-$$} * 101 + 10#$number) % 12000))
        PRONY_RENDEZVOUS="$(hostname)":"$port"
        export PRONY_RENDEZVOUS
    fi
    echo "prony: run $number begins: $folder"
    on_nodes "$nodes" "$job"/run-"$number".log "$job"/plan-"$number".json "$folder" || status=$?
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

run 000 1 /scratch/runs/gpt-tiny-20260101T000000-000000
exit "$lost"
