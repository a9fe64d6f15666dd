"""The HTML frame of a report: one self-contained page without any request."""

from __future__ import annotations

import base64
import hashlib
from html import escape

__all__ = ["embedded", "page"]

_STYLE = """
:root { color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1d2433; --muted: #5d6779; --grid: #e6e9ee; --edge: #e1e5eb;
  --series-1: #2563eb; --series-2: #d9580d; --series-3: #0d9468; --series-4: #a23bb5;
  --series-5: #a87400; --series-6: #0b8fac; --series-7: #d6336c; --series-8: #6b7280; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #11151c; --card: #1a202b; --ink: #e7ebf2; --muted: #9aa5b8; --grid: #2a3240; --edge: #2a3240;
  --series-1: #6ea8fe; --series-2: #ff9b57; --series-3: #3ecf9a; --series-4: #d68be6;
  --series-5: #e0b040; --series-6: #4cc9e6; --series-7: #ff7fab; --series-8: #a0a9b8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h3 { font-size: 1rem; }
h2 { font-size: 1.15rem; margin: 40px 0 12px; letter-spacing: -0.005em; }
p.note { color: var(--muted); margin: 0 0 12px; font-size: 0.9rem; max-width: 75ch; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 16px; margin: 0;
  break-inside: avoid; }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(155px, 1fr)); margin-top: 20px; }
.tiles dt { color: var(--muted); font-size: 0.82rem; }
.tiles dd { margin: 0; font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.3; }
.tiles small { display: block; color: var(--muted); font-size: 0.8rem; font-weight: 400; }
figure.chart figcaption { font-weight: 600; font-size: 0.95rem; margin-bottom: 6px; }
figure.chart svg { display: block; width: 100%; max-width: 540px; height: auto; margin: 0 auto; overflow: visible; }
.scroll { overflow-x: auto; width: fit-content; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; min-width: min(100%, 520px); }
th, td { text-align: right; padding: 6px 0 6px clamp(16px, 3vw, 44px); border-bottom: 1px solid var(--grid); white-space: nowrap; }
tr:last-child > * { border-bottom: 0; }
th:first-child { text-align: left; padding-left: 0; font-weight: 500; white-space: normal; overflow-wrap: anywhere; }
#diagnosis { margin: 12px 0; }
thead th { color: var(--muted); font-weight: 500; font-size: 0.84rem; }
#samples .grid { grid-template-columns: repeat(auto-fill, minmax(min(165px, 45%), 1fr)); gap: 12px; }
#samples figure { padding: 8px 10px 10px; text-align: center; min-width: 0; display: flex; flex-direction: column; }
#samples figure svg { width: 100%; height: auto; display: block; }
#samples .text { flex: 1; display: grid; place-items: center; padding: 12px 0; }
#samples .text, #samples code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
#samples .text, #samples code { font-size: 0.74rem; overflow-wrap: anywhere; }
#samples figcaption { font-size: 0.8rem; color: var(--muted); }
#samples figcaption b { display: block; color: var(--ink); font-size: 1rem; font-variant-numeric: tabular-nums; }
#samples small { display: block; overflow-wrap: anywhere; }
#samples code { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; margin-top: 2px; }
#examples td { white-space: normal; text-align: left; padding: 8px clamp(8px, 2vw, 24px) 8px 0; vertical-align: middle; }
#examples th { text-align: left; padding: 6px clamp(8px, 2vw, 24px) 6px 0; }
#examples svg, #examples img { width: clamp(80px, 24vw, 130px); height: auto; display: block; }
#examples code { font-size: 0.82rem; overflow-wrap: anywhere; white-space: pre-wrap; }
#examples small { display: block; color: var(--muted); font-variant-numeric: tabular-nums; }
details { margin-top: 24px; }
summary { cursor: pointer; font-weight: 600; }
details > .grid, details > pre.card { margin-top: 12px; }
pre { overflow-x: auto; font-size: 0.82rem; line-height: 1.45; margin: 0; }
#tip { position: fixed; z-index: 9; pointer-events: none; background: var(--ink); color: var(--card); padding: 5px 9px;
  border-radius: 6px; font-size: 0.8rem; line-height: 1.35; white-space: pre; font-variant-numeric: tabular-nums; }
@media print { body { background: #fff; } main { padding: 0; } }
"""

# Reads values back from the curves' own coordinates, so that the page holds no number twice, and turns molecules in space when
# they are dragged: a picture holds the positions, and every part is moved to where they are then.
_SCRIPT = """
const tip = document.createElement("div");
tip.id = "tip"; tip.hidden = true; document.body.append(tip);
for (const svg of document.querySelectorAll("svg[data-domain]")) {
  const [x0, x1, y0, y1, left, right, bottom, top] = svg.dataset.domain.split(" ").map(Number);
  const digits = Math.min(12, Math.max(0, 3 - Math.floor(Math.log10(y1 - y0))));
  const rule = svg.querySelector(".rule");
  const curves = [...svg.querySelectorAll("path.curve")].map(path => ({ name: path.dataset.name,
    points: [...path.getAttribute("d").matchAll(/[ML]([-.\\d]+),([-.\\d]+)/g)].map(m => [+m[1], +m[2]]) }))
    .filter(curve => curve.points.length);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const near = curves.map(c => c.points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
    const x = near.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a)[0];
    rule.setAttribute("x1", x); rule.setAttribute("x2", x); rule.setAttribute("visibility", "visible");
    const value = y => (y0 + (y - bottom) / (top - bottom) * (y1 - y0)).toFixed(digits);
    tip.textContent = `${svg.dataset.x} ${Math.round(x0 + (x - left) / (right - left) * (x1 - x0))}\\n`
      + curves.map((c, k) => `${c.name}  ${value(near[k][1])}`).join("\\n");
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; rule.setAttribute("visibility", "hidden"); });
}
for (const svg of document.querySelectorAll("svg[data-positions]")) {
  const [scale, apart, growth] = svg.dataset.scale.split(" ").map(Number);
  const parts = [...svg.querySelectorAll("[data-part]")];
  let at = svg.dataset.positions.split(";").map(p => p.split(" ").map(Number)), last = null;
  const put = (part, values) => { for (const name in values) part.setAttribute(name, values[name].toFixed(2)); };
  const show = () => {
    const depth = new Map();
    for (const part of parts) {
      const [i, j, shift] = part.dataset.part.split(" ").map(Number), a = at[i], b = at[j];
      if (b === undefined) {
        put(part, { cx: scale * a[0], cy: -scale * a[1], r: part.dataset.size * (1 + growth * a[2]) });
        depth.set(part, a[2]);
      } else {
        const dx = b[0] - a[0], dy = b[1] - a[1], by = shift * apart / (Math.hypot(dx, dy) || 1);
        put(part, { x1: scale * a[0] + by * dy, y1: by * dx - scale * a[1] });
        put(part, { x2: scale * b[0] + by * dy, y2: by * dx - scale * b[1] });
        depth.set(part, (a[2] + b[2]) / 2);
      }
    }
    svg.append(...parts.sort((a, b) => depth.get(a) - depth.get(b)));
  };
  svg.style.cursor = "grab"; svg.style.touchAction = "pan-y";
  svg.addEventListener("pointerdown", event => { last = event; svg.setPointerCapture(event.pointerId); });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { last = null; });
  svg.addEventListener("pointermove", event => {
    if (!last) return;
    const u = (event.clientX - last.clientX) / 70, v = (event.clientY - last.clientY) / 70;
    const [c, s, d, t] = [Math.cos(u), Math.sin(u), Math.cos(v), Math.sin(v)];
    at = at.map(([x, y, z]) => [c * x + s * z, y, c * z - s * x]).map(([x, y, z]) => [x, d * y - t * z, t * y + d * z]);
    last = event;
    show();
  });
}
"""


def embedded(body: str) -> str:
    """Put safe HTML into a frame of its own, so that its style and that of the page around it do not mix."""
    document = f"<!DOCTYPE html><meta charset=utf-8><style>{_STYLE}</style><main>{body}</main>"
    style = "width:100%;height:720px;border:0"
    return f'<iframe sandbox srcdoc="{escape(document, quote=True)}" style="{style}" title="report of a run"></iframe>'


def page(title: str, body: str) -> str:
    """Make a whole HTML page around ``body``, which must be safe HTML; ``title`` is plain text.

    A content security policy in the page forbids every request and every script but the page's own.
    """
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )
