"""Stored runs as charts: pictures (PNG, SVG), and the page of `hpccomm report`.

- `curves` computes the data: time and bandwidth over size, skew of ranks, history of a case.
- `pictures` and `recorded` describe the charts, as specifications of Vega-Lite.
- `page` puts them and words into one page of HTML.

`hpccomm plot` and `hpccomm report` call it.
"""
