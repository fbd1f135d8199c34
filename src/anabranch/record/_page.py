"""One self-contained HTML page: style, script library and content in a single file.

The page's own security policy forbids every request, so opening it is safe offline and on a
machine that must not talk.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from string import Template

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)

_STYLE = """
:root { color-scheme: light dark; --page: #f5f6f8; --card: #ffffff; --ink: #1d2228;
  --soft: #626b76; --edge: #dfe3e8; --good: #157347; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --card: #1d2126; --ink: #e6e9ed; --soft: #9aa4af;
    --edge: #333a42; --good: #5fce95; --bad: #ff8a80; }
  .js-plotly-plot :is([class$=tick], .infolayer, .annotation, .textpoint, .bartext,
    .barlayer, .scatterlayer) text, .js-plotly-plot text:is(.legendtext, .xtitle, .ytitle)
    { fill: var(--ink) !important; }
  .js-plotly-plot .annotation .bg { fill: var(--card) !important; }
  .js-plotly-plot .modebar-btn path { fill: var(--soft) !important; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1400px; margin: 0 auto; padding: 32px 24px 64px; }
header p { max-width: 78ch; margin: 0 0 8px; }
.kicker { color: var(--soft); font-size: 14px; }
h1 { font-size: 32px; line-height: 1.2; margin: 4px 0 16px; text-wrap: balance; }
h2 { font-size: 20px; margin: 40px 0 4px; }
.note { color: var(--soft); max-width: 90ch; margin: 0 0 12px; font-size: 15px; }
.grid { display: grid; gap: 16px; grid-template-columns:
  repeat(auto-fill, minmax(min(560px, 100%), 1fr)); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px;
  padding: 12px 16px; margin: 0; min-width: 0; overflow-x: auto; }
.card h3 { margin: 0 0 2px; font-size: 16px; }
.card > p { margin: 0; color: var(--soft); font-size: 14px; }
.problems { border-left: 4px solid var(--bad); }
.problems ul { margin: 4px 0; padding-left: 20px; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px;
  font-variant-numeric: tabular-nums; }
th, td { padding: 7px 10px; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--edge); }
thead th { color: var(--soft); font-weight: 600; font-size: 13px; vertical-align: bottom; }
tbody tr:last-child > * { border-bottom: 0; }
tbody th { font-weight: 600; min-width: 8.5em; }
td, .nowrap { white-space: nowrap; }
td.words { white-space: normal; min-width: 24em; }
.number { text-align: right; }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
"""

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title>
<style>$style</style>
<script>$library</script>
</head>
<body>
<main>
$body
</main>
</body>
</html>
""")


def page(title: str, body: str, library: str) -> str:
    """Return a whole page.

    Args:
        title: plain text.
        body: HTML, every name in it escaped.
        library: the JavaScript that the figures in the body need.
    """
    return _PAGE.substitute(
        policy=_POLICY, style=_STYLE, title=escape(title), body=body, library=library
    )


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    words: Collection[int] = (),
) -> str:
    """Return a table in a card.

    Args:
        headings: plain text, one for each column.
        rows: plain text; the first cell heads its row.
        numbers: which columns to set flush right.
        words: which columns hold sentences, and may break lines.
    """

    def cell(tag: str, column: int, text: str) -> str:
        kind = "number" if column in numbers else "words" if column in words else None
        look = f' class="{kind}"' if kind else ""
        return f"<{tag}{look}>{escape(text)}</{tag}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(headings))
    body = "\n".join(
        f"<tr>{''.join(cell('td' if i else 'th', i, text) for i, text in enumerate(row))}</tr>"
        for row in rows
    )
    return (
        f'<div class="card"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def section(heading: str, note: str, *content: str) -> str:
    """Return a section: heading and note in plain text, content in HTML."""
    return f'<h2>{escape(heading)}</h2>\n<p class="note">{escape(note)}</p>\n' + "\n".join(content)


def card(content: str, heading: str = "", note: str = "") -> str:
    """Return a figure or a sentence in a card; heading and note in plain text."""
    head = f"<h3>{escape(heading)}</h3>" if heading else ""
    below = f"<p>{escape(note)}</p>" if note else ""
    return f'<div class="card">{head}{below}{content}</div>'


def grid(*cards: str) -> str:
    """Return cards side by side where the window is wide enough; a single one at full width."""
    return cards[0] if len(cards) == 1 else f'<div class="grid">{"".join(cards)}</div>'
