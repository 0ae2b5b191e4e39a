"""Pictures: charts, drawings, and their files.

- `vega` turns charts into SVG, by Vega-Lite; it loads its library only when something is drawn.
- `canvas` draws with lines, boxes and text; it needs no library.
- `xml` makes any text fit for a document of SVG.
- `files` writes SVG and PNG.
"""
