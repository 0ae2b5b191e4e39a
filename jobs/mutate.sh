#!/usr/bin/env bash
# Changes one token of hpccomm at a time, and lists the changes that the nearest tests do not see. By hand,
# before a release or after a large change of the tests: it runs all tests once, then some for each change.
# Makes or reuses the environment of quickstart.sh. The checkout itself is not changed.
#
#   bash jobs/mutate.sh                                15 changes in each of twelve packages, about an hour
#   bash jobs/mutate.sh schedules runtime --count 40   these packages
#   bash jobs/mutate.sh --commit v0.1.0 --seed 3       the tests of another commit; other changes
#
# A line of the list is a place to look: some changes mean the same as what stood there. The table is in
# build/mutants.txt as well (--output FILE).

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

case ${1:-} in
--help | -h)
    sed -n '2,/^$/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

allow_more_ranks_than_cores
make_environment test mutate
export HPCCOMM_MPIEXEC=$mpiexec OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1} OMPI_MCA_btl=${OMPI_MCA_btl:-^ofi}
"$venv/bin/python" "$checkout/jobs/mutate.py" "$@"
