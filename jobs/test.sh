#!/usr/bin/env bash
# Everything that must hold: static checks, tests without MPI, tests under MPI on 2 and 3 ranks, of
# device arrays on a stand-in for CuPy, on several virtual hosts, docs.
# Makes or reuses the environment of quickstart.sh and installs nothing outside it.
#
#   bash jobs/test.sh
#   bash jobs/test.sh --all                                           every case, also on 1 and 4 ranks
#   bash jobs/test.sh --all --part 0/4                                a quarter of these
#   bash jobs/test.sh --changed                                       what belongs to the files that differ from main
#   HPCCOMM_MPIEXEC=/opt/mpi/bin/mpiexec bash jobs/test.sh            with the site's own MPI
#
#   --all        Run every combination of the tests' parameters, and the tests that take long. Without it,
#                a run takes few cases of each product of parameters (tests/helpers/chosen.py says how), in a
#                fifth of the time. Run it before a release, and for a change that many parameters meet in.
#   --part I/N   Of the tests, only the ones of part I, from 0 to N - 1. The N parts together are
#                all tests. Static checks and the documentation are left out.
#   --after FILE Without the tests that FILE names, the build/durations.txt of a run without --all that passed,
#                but for those that do more with --all.
#   --changed    Only the folders of tests of the packages that differ from main (origin's, where there is one),
#                with what is not committed: tests/calls for hpccomm/calls. With ruff and the import contract,
#                without mypy. For the minutes between two edits; before a commit is shared, run all.
#
# The other variables that it knows stand at the top of environment.sh. Exit status 0: all passed.
# build/durations.txt then says where the time went: in stages, and in the slowest tests. What failed
# stands in build/failures.txt and at the end of the output.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

all=()
part=()
after=()
changed=
while (($#)); do
    case $1 in
    --all) all=(--all) ;;
    --changed) changed=yes ;;
    --part)
        (($# > 1)) && [[ $2 =~ ^[0-9]+/[1-9][0-9]*$ ]] || give_up "--part takes I/N, such as 0/4."
        ((${2%/*} < ${2#*/})) || give_up "--part $2: the parts are 0 to $((${2#*/} - 1))."
        part=(--part "$2")
        shift
        ;;
    --after)
        (($# > 1)) && [[ -r $2 ]] || give_up "--after takes the file that an earlier run wrote: build/durations.txt."
        after=(--after="$(realpath "$2")")
        shift
        ;;
    --help | -h)
        sed -n '2,/^$/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    *) give_up "$1 is not an option of this script." "See --help." ;;
    esac
    shift
done

allow_more_ranks_than_cores
make_environment test docs dev plot
cd "$checkout"
# For the tests that start MPI jobs themselves.
export HPCCOMM_MPIEXEC=$mpiexec
# Tests start hundreds of processes. Each would compile all of hpccomm again.
unset PYTHONDONTWRITEBYTECODE
# Hundreds of short processes: starting a thread for each core costs NumPy's import as much again.
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
# Where libfabric finds no network, closing this transport costs every start of Open MPI a second.
export OMPI_MCA_btl=${OMPI_MCA_btl:-^ofi}
# Under Open MPI every rank believes that it writes to a terminal.
[[ -t 1 ]] || export NO_COLOR=1

# Notes of the stages: a summary, the seconds of each test, and what is printed later.
notes=$(mktemp -d)
# Open MPI's launcher refuses to start where one of the same process id was killed and left its files.
mkdir "$notes/launcher"
# Open MPI's shared memory has names of 16 bits: what killed jobs left would be taken for a new job's.
segments=
[[ ! -d /dev/shm ]] || segments=$(mktemp -d /dev/shm/mpi-XXXXXX)
aside=
clean_up() {
    [[ -z $aside ]] || kill "$aside" 2>/dev/null || true
    rm -rf "$notes" ${segments:+"$segments"}
}
trap clean_up EXIT

# stage SECONDS NAME COMMAND...   runs one step, at most so long, and notes how it ended
stage() {
    local seconds=$1 name=$2 status=0 outcome started=$SECONDS took
    shift 2
    printf '\n'
    say "$name"
    limited "$seconds" "$@" || status=$?
    case $status in
    0) outcome=passed ;;
    124 | 137) outcome="FAILED: stopped after $seconds s" ;;
    *) outcome="FAILED: exit status $status" ;;
    esac
    took=$((SECONDS - started))
    [[ $outcome == passed ]] || touch "$notes/failed"
    printf '%-28s %s (%d s)\n' "$name" "$outcome" "$took" >>"$notes/summary"
    printf '%8.2f  %s\n' "$took" "stage: $name" >>"$notes/seconds"
}

python=$venv/bin/python
workers=$(nproc)
((workers <= 16)) || workers=16
((workers += 2)) # many tests wait: for a job, or for a deadline

# tests SECONDS NAME ARGUMENT...   a stage of tests in two processes more than there are cores
tests() {
    local seconds=$1 name=$2
    shift 2
    stage "$seconds" "$name" "$python" -m pytest -n "$workers" --dist worksteal "${common[@]}" "$@"
}

# tests_on RANKS SECONDS NAME ARGUMENT...   a stage of tests that all ranks of an MPI job run
tests_on() {
    local ranks=$1 seconds=$2 name=$3
    shift 3
    stage "$seconds" "$name" env TMPDIR="$notes/launcher" \
        ${segments:+"OMPI_MCA_btl_sm_backing_directory=$segments"} "$mpiexec" -n "$ranks" \
        "$python" -m pytest --with-mpi -p no:cacheprovider -o faulthandler_timeout=60 "${common[@]}" "$@"
}
# In one word: pytest would look for its settings beside a file that stands alone.
common=(
    ${all[0]+"${all[@]}"} ${part[0]+"${part[0]}=${part[1]}"}
    --seconds="$notes/seconds" --failures="$notes/failures"
)

check_sources() {
    stage 60 "ruff check" "$python" -m ruff check
    stage 60 "ruff format" "$python" -m ruff format --check
    stage 60 "import-linter" "$venv/bin/lint-imports" --no-logo
    stage 60 "files for the forge" env HPCCOMM_VENV="$venv" bash jobs/forge.sh
}

# Device arrays on a stand-in for CuPy, which other tests must not see.
standin=$checkout/tests/standin

# Prints what differs from main, with what git does not know yet.
differing() {
    local main
    main=$(git rev-parse --verify --quiet origin/main || git rev-parse --verify --quiet main) ||
        give_up "--changed: this checkout has no branch main to compare with."
    git diff --name-only "$(git merge-base "$main" HEAD)"
    git ls-files --others --exclude-standard
}

# Prints what tests a file: itself, or the folder of tests that has its package's name.
tests_of() {
    local path=$1
    case $path in
    tests/*/test_*.py) [[ ! -e $path ]] || printf '%s\n' "$path" && return ;;
    tests/helpers/* | tests/conftest.py | tests/standin/*) return ;; # all tests, or the tests that changed with it
    hpccomm/backends/nccl/* | hpccomm/memory/cuda/*) echo tests/cuda ;;
    benchmarks/* | jobs/*) echo tests/jobs ;;
    docs/* | README.md) echo tests/docs ;;
    esac
    path=tests/${path#*/}
    while path=$(dirname "$path") && [[ $path == tests/* ]]; do
        [[ ! -d $path ]] || { echo "$path" && return; }
    done
    [[ $1 != hpccomm/* ]] || echo tests/package
}

test_changed() {
    local path chosen=() mpi=() devices=()
    while read -r path; do
        case $path in
        tests/mpi*) mpi+=("$path") ;;
        tests/cuda*) devices+=("$path") ;;
        *) chosen+=("$path") ;;
        esac
    done < <(differing | while read -r path; do tests_of "$path"; done | sort -u)
    check_sources
    ((${#chosen[@]} == 0)) || tests 900 "tests without MPI" "${chosen[@]}"
    ((${#mpi[@]} == 0)) || tests_on 2 420 "tests with MPI, ranks: 2" "${mpi[@]}"
    export PYTHONPATH=$standin
    ((${#devices[@]} == 0)) || tests 300 "devices, without MPI" "${devices[@]}"
    unset PYTHONPATH
}

test_all() {
    # What needs one core, beside the tests, which often wait.
    (
        trap - EXIT
        trap 'end_running 143' TERM
        if ((${#part[@]} == 0)); then
            check_sources
            stage 300 "mypy" "$python" -m mypy
            # Named, since with HPCCOMM_MPIEXEC, exported above, the script would make the site's environment.
            export HPCCOMM_VENV=$venv
            stage 300 "docs" bash jobs/docs.sh
            stage 300 "docs' examples" bash jobs/docs.sh --examples
        fi
    ) >"$notes/aside" 2>&1 &
    aside=$!

    tests 2700 "tests without MPI" ${after[0]+"${after[0]}"} tests --ignore=tests/mpi --ignore=tests/cluster --ignore=tests/cuda
    wait "$aside" || touch "$notes/failed"
    aside=
    cat "$notes/aside"
    tests_on 2 420 "tests with MPI, ranks: 2" ${after[0]+"${after[0]}"} tests/mpi
    tests_on 3 420 "tests with MPI, ranks: 3" ${after[0]+"${after[0]}"} tests/mpi
    if ((${#all[@]})); then
        tests_on 1 420 "tests with MPI, ranks: 1" tests/mpi
        tests_on 4 420 "tests with MPI, ranks: 4" tests/mpi
    fi
    export PYTHONPATH=$standin
    tests 300 "devices, without MPI" ${after[0]+"${after[0]}"} tests/cuda
    tests_on 2 300 "devices, ranks: 2" -q ${after[0]+"${after[0]}"} tests/cuda
    if ((${#all[@]})); then
        tests_on 1 300 "devices, ranks: 1" -q tests/cuda/test_front.py
        tests_on 4 300 "devices, ranks: 4" -q tests/cuda/test_front.py
    fi
    unset PYTHONPATH
    stage 240 "tests on virtual hosts" "$python" -m pytest -rs "${common[@]}" tests/cluster
    command -v nvidia-smi >/dev/null ||
        printf '%-28s %s\n' "tests on a GPU" "skipped: this machine has no NVIDIA driver" >>"$notes/summary"
}

if [[ $changed ]]; then test_changed; else test_all; fi

mkdir -p build
rm -f build/failures.txt
sort -rn "$notes/seconds" >build/durations.txt

printf '\n'
say "the slowest tests, in seconds (build/durations.txt has them all, and the stages)"
grep -v ' stage: ' build/durations.txt | head -n 15 || true
printf '\n'
say "summary (what single tests skipped, and why, stands above in pytest's closing lines)"
sed 's/^/   /' "$notes/summary"
printf '   all of it: %d s\n' "$SECONDS"
if [[ -e $notes/failed ]]; then
    say "FAILED"
    {
        grep FAILED "$notes/summary" || true
        [[ ! -e $notes/failures ]] || sort -u "$notes/failures"
    } | tee build/failures.txt
    exit 1
fi
say "all passed"
