"""Stored runs as charts: pictures (PNG, SVG) and one page of HTML.

- `curves` is what is drawn: time and bandwidth over size, skew of ranks, history of a case. Pure functions.
- `pictures`, `heat_map` and `training_chart` describe the charts, as specifications of Vega-Lite.
- `page` puts them and what `content` says into one page.
"""
