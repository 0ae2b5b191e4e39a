#!/usr/bin/env bash
# Measures what the documentation promises of hpccomm's speed, beside the peers, and says of each promise
# whether it is kept. Takes less than 6 minutes on 2 cores that have nothing else to do.
#
#   bash jobs/bench.sh                              all of benchmarks/promises.toml
#   bash jobs/bench.sh call "node: all_reduce"      promises with one of these in their names
#   bash jobs/bench.sh --against ../older           beside another checkout's hpccomm
#   bash jobs/bench.sh --list, --help
#
# Makes or reuses the environment of quickstart.sh and installs nothing outside it. As root it measures
# across virtual hosts as well. The variables that it knows stand at the top of environment.sh.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

make_environment
# Only where it must be: Open MPI does not bind ranks to cores then.
limited 60 "$mpiexec" -n 2 true >/dev/null 2>&1 || allow_more_ranks_than_cores
export HPCCOMM_MPIEXEC=$mpiexec
exec "$venv/bin/python" "$checkout/benchmarks/bench.py" "$@"
