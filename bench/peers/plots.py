"""Horizontal bars as SVG text, with nothing but the standard library."""

import html
import math

_OURS, _PEER, _INK, _FAINT = "#c2410c", "#64748b", "#1e293b", "#cbd5e1"
_LEFT, _WIDTH, _ROW, _TOP = 275, 430, 22, 56


def _ticks(high, low, log):
    if log:
        return [10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    step = 10 ** math.floor(math.log10(high))
    step = next(s for s in (step / 5, step / 2, step, step * 2) if high / s <= 6)
    return [step * i for i in range(math.ceil(high / step) + 1)]


def bars(title, unit, rows, log=False, mark=None):
    """rows: (label, value, low, high, ours). low to high: the spread. mark: (value, label), a ceiling as a dashed line."""
    rows = [r for r in rows if r[1] > 0]
    if not rows:
        return None
    ticks = _ticks(max([r[3] for r in rows] + ([mark[0]] if mark else [])), min(r[2] for r in rows), log)

    def x(value):
        low, high = (math.log10(ticks[0]), math.log10(ticks[-1])) if log else (0.0, ticks[-1])
        at = math.log10(max(value, ticks[0])) if log else value
        return _LEFT + _WIDTH * (at - low) / (high - low)

    bottom = _TOP + _ROW * len(rows)
    height, width = bottom + 40, _LEFT + _WIDTH + 90
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="14" font-weight="bold" fill="{_INK}">{html.escape(title)}</text>',
    ]
    for t in ticks:
        out.append(f'<line x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{_TOP - 6}" y2="{bottom}" stroke="{_FAINT}"/>')
        out.append(f'<text x="{x(t):.1f}" y="{bottom + 16}" text-anchor="middle" fill="{_INK}">{t:g}</text>')
    out.append(f'<text x="{_LEFT + _WIDTH / 2}" y="{bottom + 33}" text-anchor="middle" fill="{_INK}">{html.escape(unit)}{", log scale" if log else ""}</text>')
    for i, (label, value, low, high, ours) in enumerate(rows):
        y, color = _TOP + _ROW * i, _OURS if ours else _PEER
        weight = "bold" if ours else "normal"
        out.append(f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end" font-weight="{weight}" fill="{_INK}">{html.escape(label)}</text>')
        out.append(f'<rect x="{_LEFT}" y="{y}" width="{max(x(value) - _LEFT, 1):.1f}" height="15" fill="{color}"/>')
        out.append(f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y + 7.5}" y2="{y + 7.5}" stroke="{_INK}" stroke-width="1.5"/>')
        text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        out.append(f'<text x="{max(x(high), x(value)) + 6:.1f}" y="{y + 12}" fill="{_INK}">{text}</text>')
    if mark:
        out.append(f'<line x1="{x(mark[0]):.1f}" x2="{x(mark[0]):.1f}" y1="{_TOP - 6}" y2="{bottom}" stroke="{_INK}" stroke-dasharray="4 3"/>')
        out.append(f'<text x="{x(mark[0]):.1f}" y="{_TOP - 10}" text-anchor="middle" fill="{_INK}">{html.escape(mark[1])}</text>')
    return "\n".join([*out, "</svg>", ""])
