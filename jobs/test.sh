#!/usr/bin/env bash
# Everything that must hold: static checks, tests without MPI, tests under MPI on 1 to 4 ranks, of
# device arrays on a stand-in for CuPy, on several virtual hosts, docs.
# Makes or reuses the environment of quickstart.sh and installs nothing outside it.
#
#   bash jobs/test.sh
#   HPCCOMM_MPIEXEC=/opt/mpi/bin/mpiexec bash jobs/test.sh            with the site's own MPI
#
# The other variables that it knows stand at the top of environment.sh. Exit status 0: all passed.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

allow_more_ranks_than_cores
make_environment test docs dev plot
cd "$checkout"
# For the tests that start MPI jobs themselves.
export HPCCOMM_MPIEXEC=$mpiexec
# Under Open MPI every rank believes that it writes to a terminal.
[[ -t 1 ]] || export NO_COLOR=1

summary=()
failed=0

# stage SECONDS NAME COMMAND...   runs one step, at most so long, and notes how it ended
stage() {
    local seconds=$1 name=$2 status=0 outcome started=$SECONDS
    shift 2
    printf '\n'
    say "$name"
    limited "$seconds" "$@" || status=$?
    case $status in
    0) outcome=passed ;;
    124 | 137) outcome="FAILED: stopped after $seconds s" ;;
    *) outcome="FAILED: exit status $status" ;;
    esac
    [[ $outcome == passed ]] || failed=1
    summary+=("$(printf '%-28s %s (%d s)' "$name" "$outcome" $((SECONDS - started)))")
}

python=$venv/bin/python
stage 60 "ruff check" "$python" -m ruff check
stage 60 "ruff format" "$python" -m ruff format --check
stage 300 "mypy" "$python" -m mypy
stage 60 "import-linter" "$venv/bin/lint-imports" --no-logo
# Two at a time, file by file: a file's tests share what they start.
stage 1100 "tests without MPI" "$python" -m pytest -n 2 --dist loadfile --ignore=tests/mpi \
    --ignore=tests/cluster --ignore=tests/cuda
# Open MPI's launcher refuses to start where one of the same process id was killed and left its files.
launcher_folder=$(mktemp -d)
trap 'rm -rf "$launcher_folder"' EXIT
for ranks in 1 2 3 4; do
    stage 420 "tests with MPI, ranks: $ranks" env TMPDIR="$launcher_folder" "$mpiexec" -n "$ranks" \
        "$python" -m pytest --with-mpi -p no:cacheprovider -o faulthandler_timeout=60 tests/mpi
done
# Device arrays on a stand-in for CuPy, which other tests must not see. Each number of ranks takes
# other cases of the conformance suite; all of them run with --part 0/1.
standin=(env TMPDIR="$launcher_folder" PYTHONPATH="$checkout/tests/standin")
stage 300 "devices, without MPI" "${standin[@]}" "$python" -m pytest -n 2 --dist loadfile tests/cuda
stage 200 "devices, ranks: 2" "${standin[@]}" "$mpiexec" -n 2 "$python" -m pytest --with-mpi -q \
    -p no:cacheprovider -o faulthandler_timeout=60 --part 0/8 tests/cuda
for ranks_part in 1:1/16 4:2/32; do
    stage 200 "devices, ranks: ${ranks_part%:*}" "${standin[@]}" "$mpiexec" -n "${ranks_part%:*}" \
        "$python" -m pytest --with-mpi -q -p no:cacheprovider -o faulthandler_timeout=60 \
        --part "${ranks_part#*:}" tests/cuda/test_conformance.py
done
stage 240 "tests on virtual hosts" "$python" -m pytest -rs tests/cluster
stage 180 "docs" bash jobs/docs.sh
stage 180 "docs' examples" bash jobs/docs.sh --examples
command -v nvidia-smi >/dev/null ||
    summary+=("$(printf '%-28s %s' "tests on a GPU" "skipped: this machine has no NVIDIA driver")")

printf '\n'
say "summary (what single tests skipped, and why, stands above in pytest's closing lines)"
printf '   %s\n' "${summary[@]}"
if ((failed)); then
    say "FAILED"
else
    say "all passed"
fi
exit "$failed"
