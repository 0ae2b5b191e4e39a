#!/usr/bin/env bash
# From a checkout to a measurement: makes an environment, installs hpccomm with an MPI library, runs
# an all-reduce sweep on 2 ranks and stores it. Run again, it only measures again.
#
#   bash jobs/quickstart.sh
#   HPCCOMM_MPIEXEC=/opt/mpi/bin/mpiexec bash jobs/quickstart.sh      with the site's own MPI
#
# The other variables that it knows stand at the top of environment.sh.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
takes_no_options "$@"

make_environment
# Only where it must be: Open MPI does not bind ranks to cores then.
limited 60 "$mpiexec" -n 2 true >/dev/null 2>&1 || allow_more_ranks_than_cores

results=$checkout/results/quickstart.h5
mkdir -p "$(dirname "$results")"

say "measuring ${sweep[*]} on 2 ranks"
status=0
limited 300 "$mpiexec" -n 2 "$venv/bin/python" -m hpccomm perf \
    "${sweep[@]}" --output "$results" || status=$?
case $status in
0) ;;
124 | 137) give_up "the sweep did not end within 5 minutes and was stopped." \
    "Is the machine busy, or does $mpiexec hang?  Try: $mpiexec -n 2 hostname" ;;
*) give_up "the sweep failed with status $status (see above)." ;;
esac

# Prints a path as it can be typed.
typed() { printf '%q' "${1/#"$PWD/"/}"; }

cat <<END

It works. The table above and every sample behind it are in $results

Next:
  source $(typed "$venv/bin/activate")${exported:+; export$(printf ' %q' "${exported[@]}")}
  hpccomm show $(typed "$results")
  hpccomm perf --help
  $(typed "${HPCCOMM_MPIEXEC:-mpiexec}") -n 2 hpccomm doctor
README.md shows a first program. On a cluster, jobs/perf.sbatch runs the same sweep under Slurm.
END
