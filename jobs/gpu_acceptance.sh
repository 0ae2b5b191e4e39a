#!/usr/bin/env bash
# Whether hpccomm does on this machine's GPUs what it must, in stages. Each takes at most 9 minutes and
# writes its verdicts when it ends. A second run with the same --output goes on with the remaining ones.
#
#   bash jobs/gpu_acceptance.sh --preflight                        in some seconds: what is here, what is missing
#   bash jobs/gpu_acceptance.sh --stages one,threads,graphs        without MPI
#   bash jobs/gpu_acceptance.sh --seconds 580                      as much as fits; repeat until exit status 0
#
#   one, threads, graphs   in one process: reductions, folds, memory; contexts, captures beside calls; graphs
#   two                    two ranks: calls of each kind, and a rank that is lost with 2000 calls queued
#   overhead               what a call costs the host over CuPy's bare NCCL call
#   perf-N                 hpccomm perf, verified, on N ranks
#   tests, tests-N         the device tests in one process, and on N ranks
#   torch                  PyTorch's tensors
#   bandwidth, overlap     beside a bare loop of CuPy's calls, and beside a matrix product
#
#   --preflight            only look: installs nothing, needs no network, takes less than 20 seconds
#   --stages NAME[,...]    some of these; perf means all of its own. Default: all
#   --ranks N[,N...]       numbers of ranks (default 1,2,4); where there are fewer GPUs they share them, by
#                          MPS where it may be started
#   --seconds S            end by then. A stage that is not done is repeated by the next run; none begins with
#                          less than half of its time
#   --output FOLDER        for the log, the summary and the results (default results/gpu-acceptance-COMMIT)
#   --again                forget what the folder has
#   --no-install           use only what is here
#   --no-mps               start no MPS. Where ranks share GPUs, a verdict says whether by MPS
#   --stand-in             try this script without a GPU, on the stand-in for CuPy of the tests: what it
#                          then says is about the script alone, and no figure has a limit
#
# Packages that the Python at hand has (HPCCOMM_PYTHON, else python3) are used as they are. What chosen
# stages lack is installed beside them, in an environment of this script's own (HPCCOMM_VENV, else .venv-gpu
# in the checkout). Without a way to PyPI: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER with wheels; --preflight
# prints the command that fetches them. What cannot be had drops the stages that need it, and no others.
#
# A verdict is a line: PASS, FAIL, INFO where no limit holds, SKIP for a stage that cannot run here. Exit
# status 0: none failed; 1: some did, or a stage that --stages names cannot run; 2: nothing could be done;
# 3: none failed, and --seconds left some for another run.

set -euo pipefail

if [[ " $* " == *" --help "* || " $* " == *" -h "* ]]; then
    sed -n '2,/^$/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
fi

# Modules of clusters set these for their own Python; packages of PYTHONPATH may be what is at hand.
export SITE_PYTHONPATH=${PYTHONPATH:-}
unset PYTHONPATH PYTHONHOME

for python in ${HPCCOMM_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        exec "$python" "$(dirname "${BASH_SOURCE[0]}")/gpu/acceptance.py" "$@"
    fi
done
echo "gpu_acceptance.sh: error: no Python 3.11 or newer: name one by HPCCOMM_PYTHON" >&2
exit 2
