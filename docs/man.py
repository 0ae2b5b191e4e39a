"""Makes man pages of ``hpccomm`` and its verbs from the parsers of their flags: ``python docs/man.py FOLDER``.

FOLDER is the man1 of a manual, such as /usr/local/share/man/man1. ``man hpccomm`` and ``man hpccomm-perf-pairs`` show
what ``hpccomm --help`` and ``hpccomm perf pairs --help`` print.
"""

import sys
from datetime import date
from pathlib import Path

from argparse_manpage.manpage import Manpage

import hpccomm
from hpccomm.tools.flags import Parser
from hpccomm.tools.main import VERBS, parsers_of


def page(name: str, parser: Parser, summary: str, others: list[str]) -> str:
    """Return the text of a page; its date is that of $SOURCE_DATE_EPOCH, else today."""
    examples, parser.epilog = parser.epilog, None
    made = Manpage(parser, _data={"project_name": "hpccomm", "version": hpccomm.__version__})
    made.prog, made.description, made.manual = name, summary, "hpccomm"
    made.date = f"{date.fromisoformat(made.date):%B %d, %Y}"
    if examples:
        text = made.format_text(examples.partition("\n")[2])
        made.add_section("EXAMPLES", "=", f".nf\n{text}\n.fi")
    escaped = (other.replace("-", r"\-") for other in others)
    made.add_section("SEE ALSO", "=", ",\n".join(f"\\fB{other}\\fR(1)" for other in escaped))
    return str(made)


def pages() -> dict[str, str]:
    """Return the text of each page, by its name."""
    command, of_verbs = parsers_of(VERBS.values())
    named = {f"hpccomm-{verb.replace(' ', '-')}": verb for verb in VERBS}
    summary = str(command.description).partition("\n")[0]
    return {"hpccomm": page("hpccomm", command, summary, [*named])} | {
        name: page(name, of_verbs[verb], VERBS[verb].summary, ["hpccomm"])
        for name, verb in named.items()
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / f"{name}.1").write_text(text, "utf-8")
