#!/usr/bin/env bash
# Builds the documentation as HTML, and fails where a reference leads nowhere or a page would load
# something from another host. Needs no network once the environment is there.
#
#   bash jobs/docs.sh               into docs/_build/html
#   bash jobs/docs.sh --examples    runs the examples of the pages instead
#
# Makes or reuses the environment of quickstart.sh and installs nothing outside it. The variables that
# it knows stand at the top of environment.sh.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

builder=html
case ${1:-} in
"") ;;
--examples) builder=doctest ;;
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
*) give_up "'$1' is not an option of this script." "It takes --examples or nothing." ;;
esac

make_environment docs
cd "$checkout"
output=docs/_build/$builder
limited 300 "$venv/bin/python" -m sphinx -n -W --keep-going -q -j auto -b "$builder" \
    -d docs/_build/doctrees docs "$output" ||
    give_up "the documentation has faults (see above)."
if [[ $builder == html ]]; then
    say "open $output/index.html"
else
    say "the examples print what they are said to"
fi
