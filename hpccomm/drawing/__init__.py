"""Pictures: charts, drawings, and their files.

- `vega` turns charts into SVG, by Vega-Lite. It loads its library on the first chart.
- `canvas` draws with lines, boxes and text. It needs no library.
- `xml` escapes text for SVG.
- `files` writes SVG and PNG.

`hpccomm.charts`, `hpccomm.hardware`, `hpccomm.schedules.draw` and `hpccomm.diagnosis` draw by it.
"""
