"""One self-contained HTML page: verdict, picture, text and stacks, for `hpccomm explain`."""

from html import escape

STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:72em;margin:2em auto;padding:0 1em}"
    "pre{overflow-x:auto;background:#f4f4f4;padding:1em}svg{max-width:100%;height:auto}"
    "li:first-child{font-weight:bold}"
)


def page(title: str, verdict: list[str], picture: str, text: str) -> str:
    """Return the page.

    Parameters
    ----------
    title : str
        The subject.
    verdict : list of str
        Sentences, the cause first.
    picture : str
        An SVG document.
    text : str
        The output of the command, with the timeline.
    """
    svg = picture[picture.index("<svg") :]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in verdict)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1><ul>{items}</ul>"
        f"{svg}<pre>{escape(text)}</pre></body></html>\n"
    )
