#!/usr/bin/env bash
# A real Slurm with this machine as its only node, for the tests of jobs that run under Slurm.
#
#   bash tests/tools/slurm/one_node.sh start FOLDER     configuration, logs and state go to FOLDER
#   bash tests/tools/slurm/one_node.sh stop FOLDER      ends the jobs and the daemons that it started
#
# Root only. Needs Debian's slurm-wlm, munge and libpmix-dev (the last before slurmd starts, or its pmix
# plugin does not load). After start, commands need SLURM_CONF=FOLDER/slurm.conf. A Slurm that is
# installed on the machine stays as it is.

set -euo pipefail

action=${1:?start or stop}
folder=$(realpath -m "${2:?a folder}")
export SLURM_CONF=$folder/slurm.conf

start() {
    local cores memory host port
    ((EUID == 0)) || { echo "one_node.sh: only root can start Slurm" >&2; exit 2; }
    mkdir -p "$folder"/{state,spool,log,munge}
    # Jobs of plain users read the configuration and pass through.
    chmod 755 "$folder"
    cores=$(nproc --all)
    memory=$(awk '/MemTotal/ { print int($2 / 1024 * 0.9) }' /proc/meminfo)
    host=$(hostname -s)
    # Two, below the range that the system hands out, and hardly another Slurm's.
    port=$((16000 + $$ % 8000 * 2))

    # munged trusts a socket and a key only in folders that nobody else may change.
    dd if=/dev/urandom of="$folder/munge/key" bs=1024 count=1 status=none
    chown -R munge: "$folder/munge"
    chmod 755 "$folder/munge"
    chmod 400 "$folder/munge/key"
    setpriv --reuid=munge --regid=munge --clear-groups munged --force \
        --socket="$folder/munge/socket" --key-file="$folder/munge/key" \
        --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" \
        --seed-file="$folder/munge/seed"

    cat >"$SLURM_CONF" <<END
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
# Slurm's pmix plugin and Open MPI name folders and shared memory of the node by the job's number: those of
# several Slurms must not meet.
FirstJobId=$((port * 1000))
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PlugStackConfig=$folder/plugstack.conf
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$memory State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
END
    : >"$folder/plugstack.conf"
    # Nothing here uses cgroups; slurmd would look for them, and not start in a container without.
    echo "CgroupPlugin=cgroup/v1" >"$folder/cgroup.conf"

    if slurmctld -c -f "$SLURM_CONF" && slurmd -f "$SLURM_CONF"; then
        for _ in $(seq 60); do
            [[ $(sinfo --noheader --format=%T 2>/dev/null) == idle ]] && return
            sleep 0.5
        done
    fi
    echo "one_node.sh: Slurm did not start:" >&2
    tail -n 20 "$folder"/log/* >&2
    stop
    exit 1
}

stop() {
    local file
    scancel --state=RUNNING 2>/dev/null || true
    scancel --state=PENDING 2>/dev/null || true
    for file in "$folder"/slurmd.pid "$folder"/slurmctld.pid "$folder"/munge/pid; do
        [[ ! -f $file ]] || end "$(<"$file")"
    done
}

# Ends one process by its number, and waits for it.
end() {
    kill "$1" 2>/dev/null || return 0
    for _ in $(seq 40); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.25
    done
    kill -9 "$1" 2>/dev/null || true
}

case $action in
start) start ;;
stop) stop ;;
*)
    echo "one_node.sh: start or stop, not $action" >&2
    exit 2
    ;;
esac
