#!/usr/bin/env bash
# Makes the environment of the tests, with an MPI library, or brings it up to date. It runs no test.
#
#   bash jobs/setup.sh
#   HPCCOMM_MPIEXEC=/opt/mpi/bin/mpiexec bash jobs/setup.sh           with the site's own MPI
#
# The other variables that it knows stand at the top of environment.sh.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
takes_no_options "$@"

make_environment test docs dev plot
say "source $(printf '%q' "$venv")/bin/activate, then python -m pytest tests/calls/test_policy.py, say"
