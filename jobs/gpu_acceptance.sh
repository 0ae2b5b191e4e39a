#!/usr/bin/env bash
# Whether hpccomm does on this machine's GPUs what it must: stages, each with verdicts and a time limit.
# On one GPU, what tells most takes two commands, at most 15 minutes in all, with 469 MB to download on a machine that
# has only a driver of CUDA 13 and Python (615 MB for CUDA 12); beforehand, where time on the GPU is short:
#
#   bash jobs/gpu_acceptance.sh --preflight      in some seconds: what is here, what is missing, how many MB
#   bash jobs/gpu_acceptance.sh --seconds 400    7 minutes at most: process, one, torch
#   bash jobs/gpu_acceptance.sh --seconds 450    8 minutes at most: sharing, stop, kill, perf-2, overhead-2
#
# The second goes on where the first ended; once more, without --seconds, goes on for an hour or two. What had to be
# downloaded counts: with a network run --seconds 0 first, which installs and begins no stage. With two GPUs
# the stage mixed comes before all others: give the first command 440.
#
#   process, one           in one process: memory, captures beside calls, contexts; reductions and folds
#   torch                  PyTorch's tensors in one process. PyTorch is not installed by this script
#   sharing                how two ranks share a GPU
#   stop, kill             a rank that is lost with 2000 calls queued
#   perf-N, sweeps         hpccomm perf, verified, on N ranks
#   overhead-N             what a call costs the host over CuPy's bare NCCL call
#   front, tests-N         the tests of device arrays over NCCL in one process; all of them, on N ranks
#   bandwidth, overlap     beside a bare loop of CuPy's calls, and beside a matrix product
#   mixed                  two GPUs: a captured call on both kinds of device memory
#
#   --preflight            only look: installs nothing, takes less than 30 seconds
#   --stages NAME[,...]    some of these; perf means all of its own. Default: all
#   --seconds S            begin no stage that may take longer than is left of them
#   --output FOLDER        for logs and summary (default results/gpu-acceptance-COMMIT-DEVICE)
#   --copy-to FOLDER       copy them there after each stage (default: the variable OUT, if it is set)
#   --again                repeat stages that are done
#   --no-install           use only what is here
#   --stand-in             try this script without a GPU, on the stand-in for CuPy of the tests: what it
#                          then says is about the script alone
#
# Packages that the Python at hand has (HPCCOMM_PYTHON, else python3) are used as they are. What chosen
# stages lack is installed beside them, in an environment of this script's own (HPCCOMM_VENV, else .venv-gpu
# in the checkout). Without a network: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER with wheels; --preflight
# prints the command that fetches them. What cannot be had drops the stages that need it, and no others.
#
# A verdict is a line: PASS, FAIL, INFO where no limit holds, SKIP for a stage that cannot run here. Exit
# status 0: none failed; 1: some did, or a stage that --stages names cannot run; 2: nothing could be done;
# 3: none failed, and none ran on a GPU, or --seconds left some. With --preflight 0: nothing is to be installed;
# 1: something is; 2: no GPU.
#
# When a stage fails: read STAGE.log in the folder of results, from its end. Repeat the stage alone, once:
#   NCCL_DEBUG=INFO HPCCOMM_DEBUG=1 bash jobs/gpu_acceptance.sh --stages STAGE --again
# If it fails again, report it with summary.md, STAGE.log and the folder dumps, which `python -m hpccomm explain
# FOLDER/dumps` reads. The other stages go on in the meantime: none needs that another has passed, but for
# ranks that share a GPU, which need sharing.

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
