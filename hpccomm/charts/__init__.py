"""Stored runs as charts: pictures (PNG, SVG) and one page of HTML.

- `curves` is what is drawn: time and bandwidth over size, skew of ranks, history of a case. Pure functions.
- `pictures` draws it with matplotlib.
- `page` makes the report with Bokeh, from what `content` puts together.
"""
