#!/usr/bin/env bash
# Builds the documentation as HTML, and fails where a link leads nowhere, a page would load something
# from another host, or the search does not find. Needs no network once the environment is there.
#
#   bash jobs/docs.sh                 into docs/_build/html
#   bash jobs/docs.sh --site FOLDER   into FOLDER/VERSION beside those of other versions, which FOLDER/index.html lists
#   bash jobs/docs.sh --single-page   into one file, docs/_build/singlehtml/index.html
#   bash jobs/docs.sh --man           as man pages, into docs/_build/man/man1
#   bash jobs/docs.sh --examples      runs the examples of the pages instead
#   bash jobs/docs.sh --links         asks each address in other places instead, which takes a network
#
# Makes or reuses the environment of quickstart.sh and installs nothing outside it. The variables that
# it knows stand at the top of environment.sh. The date on the pages is that of the commit, or
# SOURCE_DATE_EPOCH.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

builder=html
site=
case ${1:-} in
"") ;;
--site)
    (($# == 2)) || give_up "--site takes a folder."
    site=$(realpath -m "$2")
    ;;
--single-page) builder=singlehtml ;;
--man) builder=man ;;
--examples) builder=doctest ;;
--links) builder=linkcheck ;;
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
*) give_up "'$1' is not an option of this script." "See --help." ;;
esac

make_environment docs
cd "$checkout"
output=docs/_build/$builder
if [[ -z ${SOURCE_DATE_EPOCH:-} ]] && committed=$(git log -1 --format=%ct 2>/dev/null); then
    export SOURCE_DATE_EPOCH=$committed
fi
if [[ $builder == man ]]; then
    COLUMNS=80 "$venv/bin/python" docs/man.py "$output/man1"
    say "man -M $output hpccomm"
    exit
fi
# -a: the search forgets the index entries of pages that are not written again.
limited 300 "$venv/bin/python" -m sphinx -n -W --keep-going -q -a -j auto -b "$builder" \
    -d docs/_build/doctrees docs "$output" ||
    give_up "the documentation has faults (see above)."
if [[ $builder == html ]]; then
    if command -v chromedriver >/dev/null && "$venv/bin/python" -c 'import selenium' 2>/dev/null; then
        limited 120 "$venv/bin/python" docs/searches.py "$output" || give_up "the search does not find (see above)."
    else
        say "the search was not tried, which takes chromedriver and selenium"
    fi
fi
if [[ $site ]]; then
    version=$("$venv/bin/python" -c 'import hpccomm; print(hpccomm.__version__)')
    mkdir -p "$site"
    rm -rf "${site:?}/$version"
    cp -r "$output" "$site/$version"
    {
        echo '<!DOCTYPE html><meta charset="utf-8"><title>hpccomm</title><h1>hpccomm</h1><ul>'
        (cd "$site" && printf '%s\n' [0-9]*/) | sort -rV | sed 's|.*|<li><a href="&index.html">&</a>|; s|/</a>|</a>|'
    } >"$site/index.html"
    say "open $site/index.html"
else
    case $builder in
    *html) say "open $output/index.html" ;;
    doctest) say "the examples print what they are said to" ;;
    linkcheck) say "every address answers" ;;
    esac
fi
