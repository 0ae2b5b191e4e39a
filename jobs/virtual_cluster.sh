#!/usr/bin/env bash
# Several hosts on one machine: runs a command on MPI ranks that are spread over network namespaces.
#
#   sudo bash jobs/virtual_cluster.sh --nodes 2 --ranks-per-node 2 --link 1gbit -- \
#       python -m hpccomm perf all_reduce -b 1M -e 16M -f 4
#
# --help tells the rest; docs/how_to/virtual_cluster.rst tells what it is good for. The MPI is that of
# environment.sh. Everything lives in namespaces of this run alone, which the kernel takes down when
# their first process ends: nothing has a name that another run could meet or that could be left over.
# shellcheck disable=SC2317  # functions that are called inside, or by traps

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

# What tests take as "cannot be had here", as automake's do.
unavailable=77

usage() {
    cat <<'END'
usage: virtual_cluster.sh --nodes N --ranks-per-node R[,R...] [--link RATE[,RATE...]] -- COMMAND [ARGUMENT...]

Makes N hosts in network namespaces, joined by a bridge, runs COMMAND on R MPI ranks in each of them,
and takes everything down again, however the run ends. Needs root, and Linux with iproute2.

  --nodes N              number of hosts, 1 to 250; they are called host0, host1, ...
  --ranks-per-node R     ranks on each host; a list of N numbers gives each host its own
  --link RATE            limits each host's link in each direction: 1gbit, 250mbit (default: no limit);
                         a list of N rates gives each host its own
  --help                 prints this

Ranks fill the hosts one after the other, are bound to no core, and yield while they wait, since all
hosts share this machine's cores. Each host has a name, an address, a /dev/shm and a TMPDIR of its own;
all other files are this machine's, and there is no way out into its network. Standard input is empty.

Exit status: that of COMMAND (of the first rank that fails); 2 for wrong arguments; 77 where such a
cluster cannot be made, with the reason.

The MPI library is Open MPI in .venv (made by jobs/quickstart.sh), or the one of HPCCOMM_MPIEXEC: Open
MPI 5, MPICH or Intel MPI.
END
}

# cannot LINE...   ends the script where the machine does not allow what it does
cannot() {
    printf 'virtual_cluster.sh: %s\n' "$1" >&2
    shift
    (($# == 0)) || printf '  %s\n' "$@" >&2
    exit "$unavailable"
}

nodes='' per_node='' link=''
while (($#)); do
    case $1 in
    --help | -h)
        usage
        exit 0
        ;;
    --nodes | --ranks-per-node | --link)
        (($# > 1)) || give_up "$1 needs a value." "See --help."
        case $1 in
        --nodes) nodes=$2 ;;
        --ranks-per-node) per_node=$2 ;;
        --link) link=$2 ;;
        esac
        shift 2
        ;;
    --nodes=* | --ranks-per-node=* | --link=*)
        set -- "${1%%=*}" "${1#*=}" "${@:2}"
        ;;
    --)
        shift
        break
        ;;
    *) give_up "$1 is not an option of this script." "The command stands behind --; see --help." ;;
    esac
done
[[ -n $nodes && -n $per_node ]] || give_up "give --nodes and --ranks-per-node." \
    "Such as:  --nodes 2 --ranks-per-node 2 -- python -m hpccomm perf all_reduce -b 1M -e 16M -f 4" "See --help."
[[ $nodes =~ ^[1-9][0-9]{0,2}$ ]] && ((nodes <= 250)) ||
    give_up "--nodes takes a number from 1 to 250, not '$nodes'."
[[ $per_node =~ ^[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*$ ]] ||
    give_up "--ranks-per-node takes a positive number, or one for each host: 2 or 2,1; not '$per_node'."
IFS=, read -ra ranks <<<"$per_node"
if ((${#ranks[@]} == 1)); then
    for ((host = 1; host < nodes; host++)); do ranks[host]=${ranks[0]}; done
fi
((${#ranks[@]} == nodes)) ||
    give_up "--ranks-per-node has ${#ranks[@]} numbers for $nodes hosts." "Give one, or one for each."
rate='[1-9][0-9]*(\.[0-9]+)?[kmgt]?bit'
[[ -z $link || $link =~ ^$rate(,$rate)*$ ]] ||
    give_up "--link takes a rate as tc does, such as 1gbit or 250mbit, or one for each host; not '$link'."
IFS=, read -ra rates <<<"$link"
((${#rates[@]} <= 1 || ${#rates[@]} == nodes)) ||
    give_up "--link $link has ${#rates[@]} rates, for $nodes hosts; give one, or one for each host."
(($#)) || give_up "the command is missing." "It stands behind --; see --help."

((EUID == 0)) || cannot "only root may make hosts out of namespaces." \
    "Run it by sudo, or in a container that has the capability SYS_ADMIN."
for tool in ip tc unshare setpriv mount hostname; do
    command -v "$tool" >/dev/null || cannot "this machine has no '$tool'." \
        "Debian, Ubuntu:  apt install iproute2 util-linux hostname"
done
namespaces=(setpriv --pdeathsig KILL unshare --fork --kill-child=KILL
    --pid --mount-proc --mount --net --uts --ipc)
refusal=$("${namespaces[@]}" true 2>&1) ||
    cannot "this machine does not allow namespaces: $refusal" \
        "In a container it takes the capability SYS_ADMIN (docker run --privileged)."

find_environment
[[ -x $mpiexec ]] || give_up "there is no $mpiexec." \
    "Make the environment first, bash jobs/quickstart.sh, or set HPCCOMM_MPIEXEC."
[[ ! -d $venv/bin ]] || PATH=$venv/bin:$PATH

# Addresses of a network that exists in these namespaces only.
network=10.77.0
hosts=
total=0
for ((host = 0; host < nodes; host++)); do
    hosts+=${hosts:+,}host$host:${ranks[host]}
    ((total += ranks[host]))
done
case $("$mpiexec" --version 2>&1) in
*"Open MPI"*)
    launch=("$mpiexec" --prtemca plm_ssh_agent /run/agent --prtemca prte_if_include "$network.0/24"
        --mca pml ob1 --mca btl "tcp,sm,self" --mca btl_tcp_if_include "$network.0/24"
        --mca osc "^ucx" --mca mpi_yield_when_idle 1
        --host "$hosts" --map-by "slot:OVERSUBSCRIBE" --bind-to none -n "$total"
        # It hangs where ranks end before each host has reported that its own are started.
        sh -c 'sleep 0.5; exec "$@"' sh)
    ;;
*HYDRA* | *"Intel(R) MPI"*)
    launch=("$mpiexec" -launcher ssh -launcher-exec /run/agent -hosts "$hosts" -n "$total")
    ;;
*) give_up "$mpiexec is none of Open MPI, MPICH and Intel MPI." \
    "Only their launchers are known well enough to start ranks in namespaces." ;;
esac

# What follows, up to `inside`, runs as the first process of all namespaces.

# Prints the lines; ends with the status for machines on which this cannot be done.
fail_inside() {
    printf 'virtual_cluster.sh: %s\n' "$@" >&2
    exit "$unavailable"
}

# limit RATE DEVICE TC-OPTION...   limits what leaves by a device. The burst lets a queue go on while the kernel wakes up.
limit() {
    [[ -z $link ]] || tc "${@:3}" qdisc add dev "$2" root tbf rate "$1" burst 1mb latency 20ms ||
        fail_inside "this kernel cannot limit a link (tc's tbf); leave out --link."
}

raise_hosts() {
    local host rate rates
    IFS=, read -ra rates <<<"$link"
    # All that the run writes for itself is in this /run, which is private and never cleaned up.
    mount -t tmpfs -o mode=755 run /run || fail_inside "this machine does not allow to mount."
    mkdir /run/tmp
    hostname launcher
    echo 127.0.0.1 localhost >/run/hosts
    ip link set lo up
    ip link add bridge type bridge forward_delay 0 ||
        fail_inside "this kernel has no network bridges."
    ip addr add "$network.254/24" dev bridge
    ip link set bridge up
    echo "$network.254 launcher" >>/run/hosts
    for ((host = 0; host < nodes; host++)); do
        ip netns add "host$host" || fail_inside "this machine does not allow network namespaces."
        ip link add "port$host" type veth peer name eth0 netns "host$host" ||
            fail_inside "this kernel has no veth devices."
        ip link set "port$host" master bridge up
        ip -n "host$host" link set lo up
        ip -n "host$host" addr add "$network.$((host + 1))/24" dev eth0
        ip -n "host$host" link set eth0 up
        rate=${rates[host]-${rates[0]-}}
        limit "$rate" "port$host"
        limit "$rate" eth0 -n "host$host"
        echo "$network.$((host + 1)) host$host" >>/run/hosts
    done
    [[ ! -e /etc/hosts ]] || mount --bind /run/hosts /etc/hosts
    # What a launcher calls in place of ssh: [OPTION...] HOST WORD... Open MPI's daemon leaves its
    # first process; a host must stay up until all that runs on it has ended.
    cat >/run/agent <<'END'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" \
    unshare --uts --ipc --pid --mount-proc --fork --kill-child=KILL sh -c '
    hostname "$0" && mount -t tmpfs -o mode=1777 shm /dev/shm && mount -t tmpfs tmp /run/tmp || exit
    sh -c "$*" || exit
    set -- /proc/[0-9]*
    while [ $# -gt 1 ]; do
        sleep 0.1
        set -- /proc/[0-9]*
    done' "$host" "$@"
END
    chmod +x /run/agent
}

inside() {
    local status=0
    raise_hosts
    # The first process of a namespace gets only the signals that it handles.
    trap 'kill -TERM "$launcher" 2>/dev/null' TERM
    TMPDIR=/run/tmp "${launch[@]}" &
    launcher=$!
    wait "$launcher" || status=$?
    # A signal ends the waiting, not the launcher, which first ends its ranks.
    while kill -0 "$launcher" 2>/dev/null; do wait "$launcher" || status=$?; done
    exit "$status"
}

# Ends the run: in order first, then at once. With its first process all others of it are killed.
take_down() {
    local tenth
    trap '' INT TERM HUP
    set +e
    kill -TERM -- "-$running" 2>/dev/null
    for ((tenth = 0; tenth < 50; tenth++)); do
        kill -0 "$running" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$running" 2>/dev/null
    wait "$running" 2>/dev/null
    exit "$1"
}

launch+=("$@")
run=$(declare -p launch link network nodes unavailable; declare -f fail_inside limit raise_hosts inside)
trap 'take_down 130' INT
trap 'take_down 143' TERM
trap 'take_down 129' HUP
# A process group of its own: signals from the terminal come here first. If this script is killed, the
# kernel kills setpriv's process, and with it the namespaces' first one.
set -m
"${namespaces[@]}" bash -euo pipefail -c "$run; inside" </dev/null &
running=$!
set +m
status=0
wait "$running" || status=$?
exit "$status"
