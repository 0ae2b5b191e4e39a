#!/usr/bin/env bash
# What a cluster without internet does, on this machine: downloads the wheels into a folder, takes the network
# away, installs from the folder alone beside the site's own MPI, loads the module file, and measures.
#
#   bash jobs/offline.sh                                            the Open MPI of quickstart.sh is the site's
#   HPCCOMM_MPIEXEC=/opt/mpi/bin/mpiexec bash jobs/offline.sh
#
# The wheel is built from the checkout. Only root can take the network away. Without Lmod and Environment
# Modules, PATH is set without the module file. The variables that it knows stand at the top of environment.sh.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
takes_no_options "$@"

make_environment
allow_more_ranks_than_cores
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say "building the wheel, and downloading what it needs"
limited 300 "$venv/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$work/wheels" "$checkout"
wheel=$(basename "$work"/wheels/*)
limited 300 "$venv/bin/python" -m pip download --quiet --dest "$work/wheels" "$work/wheels/$wheel"

on_the_cluster() {
    # Open MPI reaches its own processes by it. It is up where the network stays.
    ip link set lo up 2>/dev/null || true
    "$venv/bin/python" -m venv "$root"
    # No setting may name a folder or an index of this machine.
    PIP_CONFIG_FILE=/dev/null "$root/bin/python" -m pip --isolated install --quiet --no-compile \
        --no-index --find-links "$work/wheels" "$work/wheels/$wheel"
    if [[ -e $modules ]]; then
        source "$modules"
        module use "$work/modulefiles"
        module load hpccomm
        module list
    else
        PATH=$root/bin:$mpi/bin:$PATH
        export LD_LIBRARY_PATH=$mpi/lib
    fi
    [[ $(command -v hpccomm) == "$root/bin/hpccomm" ]]
    "${mpiexec##*/}" -n 2 hpccomm perf all_reduce -b 1K -e 64K -f 4
}

version=${wheel#hpccomm-}
root=$work/hpccomm/${version%%-*}
mpi=$(dirname "$(dirname "$mpiexec")")
modules=${MODULESHOME:-/usr/share/lmod/lmod}/init/bash
alone=(unshare --net)
if ((EUID)) || ! "${alone[@]}" true; then
    alone=()
    say "the network stays: this may not take it away"
fi
cp -r "$checkout/jobs/packaging/modulefiles" "$work"
# hpccomm's module file loads an MPI by this name, whichever the site has.
cat >"$work/modulefiles/openmpi" <<END
#%Module
prepend-path PATH $mpi/bin
prepend-path LD_LIBRARY_PATH $mpi/lib
END

say "installing from the folder alone, and measuring"
export venv work wheel root mpi mpiexec modules
export -f on_the_cluster
limited 300 ${alone[0]+"${alone[@]}"} bash -ec on_the_cluster
