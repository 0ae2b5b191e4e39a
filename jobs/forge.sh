#!/usr/bin/env bash
# Checks what a forge reads, and nothing here runs: workflows, forms of issues, Dependabot's file, the
# citation, and the files of changelog.d. Takes seconds, and no network.
#
#   bash jobs/forge.sh
#
# Its tools are those of the extra dev: of the environment of setup.sh, or of an active one. Where actionlint is on
# the PATH, it is run as well.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
takes_no_options "$@"

find_environment
PATH=$venv/bin:$PATH
cd "$checkout"

# conforms SCHEMA FILE...
conforms() { check-jsonschema --builtin-schema "$@"; }

# Its packages on PyPI are a fork, or download a program while pip installs. So the extra dev does not have it.
if command -v actionlint >/dev/null; then
    actionlint
else
    echo "forge.sh: actionlint is not installed: schemas and zizmor alone check the workflows"
fi
zizmor --offline --quiet --persona auditor .github
conforms custom.github-workflows-require-timeout .github/workflows/*.yml
conforms vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
conforms vendor.dependabot .github/dependabot.yml
conforms vendor.citation-file-format CITATION.cff

# towncrier knows the names of the files, and not how the lines of this changelog begin.
section=$(towncrier build --draft --version next)
! grep '^- ' <<<"$section" | grep -v '^- \*\*[^*]*\*\*: ' ||
    give_up "a change of changelog.d does not begin with its topic, as **Topic**: text (see above)."
