"""Pictures of the documentation, drawn from the schedules themselves when it is built."""

import os
from pathlib import Path
from typing import ClassVar

import two_way_ring
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import hpccomm.schedules.algorithms
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm
from hpccomm.tools import drawing
from hpccomm.tools.drawing import save
from hpccomm.tools.runs import schedule, trace
from hpccomm.tools.runs.schedule import draw
from hpccomm.tools.runs.trace import subject

KNOWN = {
    **ALGORITHMS,
    "all_gather": {
        **ALGORITHMS["all_gather"],
        "two_way_ring": Algorithm(two_way_ring.all_gather),  # the example of how to add one
    },
}
NUMBERS = ("ranks", "root", "count", "segment", "channels", "nodes")
SOURCES = [
    *(Path(str(module.__file__)) for module in (drawing, schedule, trace)),
    *(
        file
        for folder in hpccomm.schedules.algorithms.__path__
        for file in Path(folder).glob("*.py")
    ),
]


class Picture(SphinxDirective):
    """``.. picture-of:: ALGORITHM COLLECTIVE`` draws it; its options are those of `hpccomm plot`."""

    required_arguments = 2
    option_spec: ClassVar = {
        **dict.fromkeys(NUMBERS, directives.nonnegative_int),
        "deterministic": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Draw the picture, and show its file."""
        algorithm, collective = self.arguments
        asked = {name: value for name, value in self.options.items() if name in NUMBERS}
        ordered = "deterministic" in self.options
        try:
            shown = subject(algorithm, collective, deterministic=ordered, known=KNOWN, **asked)
        except UsageError as error:
            raise self.error(str(error)) from error
        words = [algorithm, collective, *(f"{name}{value}" for name, value in asked.items())]
        file = Path(self.env.doctreedir) / "pictures" / f"{'-'.join(words + ['o'] * ordered)}.svg"
        file.parent.mkdir(exist_ok=True)
        save(draw(shown), file)
        for source in SOURCES:
            self.env.note_dependency(str(source))
        self.env.note_dependency(__file__)
        page = Path(self.env.doc2path(self.env.docname)).parent
        uri = Path(os.path.relpath(file, page)).as_posix()
        return [nodes.image(uri=uri, alt=f"{shown.title}: {shown.summary}")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Announce the directive."""
    app.add_directive("picture-of", Picture)
    return {"parallel_read_safe": True}
