#!/usr/bin/env bash
# Makes VERSION.h5.gz, a results file of the hpccomm on PATH, and VERSION.csv.gz, its exports by it. Before a
# release, in an environment that has its wheel:
#
#   bash tests/results/data/releases/make.sh 0.1.0

set -euo pipefail
version=$(hpccomm --version)
if [[ $version != "hpccomm $1" ]]; then
    echo "make.sh: error: PATH has $version, and not hpccomm $1." >&2
    exit 2
fi
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp "$here/program.py" .
mpiexec -n 2 hpccomm perf all_reduce -b 1K -e 4K -f 2 -n 5 --output made.h5
mpiexec -n 2 hpccomm perf all_gather -b 1K -e 1K -n 3 -d half --sync round-time --output made.h5
mpiexec -n 2 hpccomm record --output made.h5 -- python program.py log.h5
mpiexec -n 2 python program.py made.h5
for name in run0001 run0002 recording0001 recording0002; do
    hpccomm export made.h5 --format csv --run "$name"
done >made.csv
for kind in h5 csv; do
    gzip -9 --no-name --stdout "made.$kind" >"$here/$1.$kind.gz"
done
