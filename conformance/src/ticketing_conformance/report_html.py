"""The static site of the report: an index, and a page per failure with its bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ticketing_spec.codec import Malformed

from ticketing_conformance.report import OUTCOMES, Report, cell_text
from ticketing_conformance.results import Result, StreamText
from ticketing_conformance.streams import cut, read_piece, the_spec

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #8886;padding:.25rem .6rem;
text-align:left;vertical-align:top}code,pre{font:13px/1.4 ui-monospace,monospace}
td code{word-break:break-all}
pre{overflow:auto;background:#8881;padding:.8rem}.failed{background:#d334}.skipped{background:#cc04}
.passed{background:#2a22}.differs{background:#d335}
"""


def page_name(result: Result) -> str:
    """The file of a failure's page."""
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", f"{result.id}-{result.column}")
    return f"failure-{safe}.html"


def write_site(report: Report, folder: Path) -> None:
    """Write index.html and the pages of the failures."""
    (folder / "index.html").write_text(_index(report), encoding="utf-8")
    for result in report.results:
        if result.outcome == "failed":
            (folder / page_name(result)).write_text(_failure(result), encoding="utf-8")


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{body}</html>\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already."""
    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    lines = "".join("<tr>" + "".join(cells) + "</tr>" for cells in rows)
    return f"<table><tr>{top}</tr>{lines}</table>"


def _cell(html: str, kind: str = "") -> str:
    return f'<td class="{kind}">{html}</td>' if kind else f"<td>{html}</td>"


def _index(report: Report) -> str:
    counts = ", ".join(f"{report.count(outcome)} {outcome}" for outcome in OUTCOMES)
    parts = [f"<p>{counts}. Spec digest <code>{the_spec().digest}</code>.</p>"]
    parts += [f"<p>{escape(said)}.</p>" for said in report.other_readers()]
    clients = [
        [_cell(escape(text)) for text in (name, hello.client, hello.runtime)]
        for name, hello in report.hellos.items()
    ]
    parts.append(_table(["client", "version", "runtime"], clients))
    parts += ["<h2>Matrix</h2>", _matrix(report)]
    problems = [f"<li>{escape(fault)}</li>" for fault in report.faults]
    problems += [f"<li>not tested: {escape(reason)}</li>" for reason in report.missing.values()]
    problems += [
        f'<li><a href="{page_name(r)}">{escape(r.id)} with {escape(r.column)}</a></li>'
        for r in report.results
        if r.outcome == "failed"
    ]
    problems += [
        f"<li>skipped: {escape(reason)}: {escape(', '.join(tests))}</li>"
        for reason, tests in _skips(report).items()
    ]
    if problems:
        parts.append("<h2>Not passed</h2><ul>" + "".join(problems) + "</ul>")
    if report.digests:
        parts += ["<h2>Identity: SHA-256 of what each client sent</h2>", _identity(report)]
    parts += ["<h2>Requirements</h2>", _requirements(report)]
    return _page("Ticketing conformance", "".join(parts))


def _skips(report: Report) -> dict[str, list[str]]:
    """The skipped tests by their reason."""
    skips: dict[str, list[str]] = {}
    for result in report.results:
        if result.outcome == "skipped":
            skips.setdefault(result.reason, []).append(f"{result.id} with {result.column}")
    return skips


def _matrix(report: Report) -> str:
    rows = []
    for suite in report.suites:
        row = [_cell(escape(suite))]
        for column in report.columns:
            counts = report.cell(suite, column)
            kind = next((k for k in ("failed", "skipped", "passed") if counts[k]), "")
            row.append(_cell(escape(cell_text(counts)), kind))
        rows.append(row)
    return _table(["suite", *report.columns], rows)


def _identity(report: Report) -> str:
    rows = []
    for scenario, digests in sorted(report.digests.items()):
        same = len(set(digests.values())) == 1
        row = [_cell(escape(scenario))]
        for client in report.identity_clients:
            digest = report.identity_cell(scenario, client)
            row.append(_cell(f"<code>{digest}</code>", "passed" if same else "failed"))
        rows.append(row)
    return _table(["scenario", *report.identity_clients], rows)


def _requirements(report: Report) -> str:
    rows = []
    for known, tests in report.coverage:
        named = ", ".join(escape(test) for test in tests[:12])
        elsewhere = escape(report.elsewhere.get(known.id, ""))
        if len(tests) > 12:
            named += f" and {len(tests) - 12} more"
        rows.append(
            [
                _cell(f"<code>{escape(known.id)}</code>"),
                _cell(f"{escape(known.side)}, {escape(known.level)}"),
                _cell(escape(known.text)),
                _cell(named or elsewhere or "none", "" if tests or elsewhere else "failed"),
            ]
        )
    return _table(["requirement", "of", "text", "tests that passed"], rows)


def _failure(result: Result) -> str:
    parts = [
        f"<p>{escape(result.about)}</p>",
        f"<p>Requirements: {escape(', '.join(result.requirements) or 'none')}</p>",
        f"<p>Again: <code>{escape(result.again)}</code></p>",
        f"<pre>{escape(result.reason)}</pre>",
    ]
    if result.transcript:
        parts.append(f"<h2>Steps</h2><pre>{escape(chr(10).join(result.transcript))}</pre>")
    for stream in result.streams:
        way = "client to server" if stream.direction == "up" else "server to client"
        title = f"{stream.name}, connection {stream.connection}, {way}"
        parts.append(f"<h2>{escape(title)}</h2>{stream_table(stream)}")
    if result.log:
        parts.append(f"<h2>Log of the adapter</h2><pre>{escape(chr(10).join(result.log))}</pre>")
    parts.append('<p><a href="index.html">All results</a></p>')
    return _page(f"{result.id} with {result.column}", "".join(parts))


def stream_table(stream: StreamText) -> str:
    """The frames of a stream, annotated; beside them what was expected, where that is known."""
    direction = "client" if stream.direction == "up" else "server"
    got = annotate(direction, bytes.fromhex(stream.hex))
    if stream.expected_hex is None:
        return _table(["offset", "bytes", "read as"], [[_cell(c) for c in row] for row in got])
    expected = annotate(direction, bytes.fromhex(stream.expected_hex))
    rows = []
    for number in range(max(len(got), len(expected))):
        ours = got[number] if number < len(got) else ["", "", "nothing"]
        theirs = expected[number] if number < len(expected) else ["", "", "nothing"]
        kind = "" if ours[1] == theirs[1] else "differs"
        rows.append([_cell(cell, kind) for cell in [*ours, theirs[1], theirs[2]]])
    return _table(["offset", "bytes", "read as", "expected bytes", "expected"], rows)


def annotate(direction: str, data: bytes) -> list[list[str]]:
    """Offset, hex and reading of each piece of a stream, as HTML."""
    rows: list[list[str]] = []
    offset = 0
    pieces, rest = cut(direction, data)
    for number, piece in enumerate(pieces):
        rows.append([str(offset), _hex(piece), _reading(direction, number, piece)])
        offset += len(piece)
    if rest:
        rows.append([str(offset), _hex(rest), "half a frame"])
    return rows


def _hex(data: bytes) -> str:
    return f"<code>{data.hex(' ')}</code>"


def _reading(direction: str, number: int, piece: bytes) -> str:
    try:
        name, fields = read_piece(direction, number, piece)
    except Malformed as error:
        return f"malformed: {escape(str(error))}"
    frame = the_spec().preamble(name) if name == "greeting" else the_spec().frame(direction, name)
    start = 0 if name == "greeting" else 3
    lines = [f"<b>{escape(name)}</b>"]
    for offset, known in frame.offsets():
        size = known.size if known.size is not None else len(piece) - start - offset
        raw = piece[start + offset : start + offset + size].hex()
        value = fields[known.name]
        shown = str(value) if not isinstance(value, bytes) or size <= 64 else f"{size} bytes"
        lines.append(f"{start + offset}: <code>{raw[:64]}</code> {known.name} {escape(shown)}")
    return "<br>".join(lines)
