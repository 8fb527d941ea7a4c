"""The style and the script of a page. Both are in the page itself, and its policy names them by their hashes."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --back: #fff; --panel: #f5f6f8; --text: #1b1f24; --soft: #535b66; --line: #c9ced6;
  --good: #16703f; --warn: #8a5a00; --bad: #b3261e; --blue: #1f5fa8; --grey: #767f8c; --mark: #e8f0fa; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --panel: #1e2228; --text: #e7eaee; --soft: #a9b2be;
  --line: #3d444e; --good: #53c28b; --warn: #e0b050; --bad: #ff8a80; --blue: #82b6f2; --grey: #8d97a5;
  --mark: #22303f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--back); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .25rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; padding-top: .5rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
p { margin: .35rem 0; max-width: 48rem; }
a { color: var(--blue); }
:focus-visible { outline: 3px solid var(--blue); outline-offset: 2px; }
.soft, caption, figcaption, dt, .axis { color: var(--soft); }
.says { font-size: 1.05rem; }
.state { display: inline-block; padding: .05rem .6rem; border: 2px solid currentColor; border-radius: 1rem;
  font-weight: 600; white-space: nowrap; }
td .state { border: 0; padding: 0; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); } .blue { color: var(--blue); }
code, pre, td, th, dd, .data { unicode-bidi: isolate; overflow-wrap: anywhere; }
code, pre { font: .875rem/1.45 ui-monospace, monospace; }
pre { background: var(--panel); padding: .75rem; overflow: auto; max-height: 30rem; white-space: pre-wrap; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; padding: 0; margin: .75rem 0; }
progress { width: 100%; height: 1rem; accent-color: var(--good); }
dl.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .5rem 1.5rem;
  margin: .75rem 0; }
dl.facts div { min-width: 0; } dt { font-size: .875rem; } dd { margin: 0; }
.note h2 { border: 0; margin: 0; padding: 0; }
.note { border-left: 4px solid var(--warn); background: var(--panel); padding: .5rem 1rem; margin: 1rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .925rem; margin: .5rem 0; }
caption { text-align: left; padding: .25rem 0; }
caption span { position: sticky; left: 0; display: inline-block; max-width: calc(100vw - 2rem);
  overflow-wrap: anywhere; }
.n + :not(.n) { padding-left: .75rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line);
  min-width: 6.5rem; max-width: 28rem; }
thead th { color: var(--soft); font-weight: 600; overflow-wrap: normal; }
tbody th { font-weight: 500; }
.n { text-align: right; min-width: 0; font-variant-numeric: tabular-nums; white-space: nowrap; overflow-wrap: normal; }
figure { margin: .75rem 0 1.25rem; }
figure svg { display: block; width: 100%; }
.chart { display: grid; grid-template-columns: 5.5rem 1fr; column-gap: .5rem; align-items: stretch; }
.chart .up { display: flex; flex-direction: column; justify-content: space-between; text-align: right; }
.axis { font-size: .8125rem; line-height: 1.1; font-variant-numeric: tabular-nums; }
.along { display: flex; justify-content: space-between; gap: 1rem; grid-column: 2; padding-top: .25rem; }
.plot { background: var(--panel); border-bottom: 1px solid var(--grey); height: 7rem; }
.lane { height: .8rem; background: var(--panel); margin-top: 2px; }
.lane-name { text-align: right; margin-top: 2px; }
.bar { height: 1.6rem; } .small { height: .7rem; width: 10rem; }
.f-good { fill: var(--good); } .f-warn { fill: var(--warn); } .f-bad { fill: var(--bad); }
.f-blue { fill: var(--blue); }
.f-grey { fill: var(--grey); } .f-soft { fill: var(--mark); stroke: var(--blue); stroke-width: 1; }
.s-bad { stroke: var(--bad); fill: none; stroke-width: 2; } .s-line { stroke: var(--grey); fill: none; }
.s-mark { stroke: var(--text); stroke-width: 1; stroke-dasharray: 4 4; fill: none;
  vector-effect: non-scaling-stroke; }
.lanes { background: var(--panel); margin-top: 2px; }
.s-limit { stroke: var(--warn); stroke-width: 2.5; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; } svg .t { font-weight: 600; font-size: 13px; }
svg.plan { width: auto; max-width: none; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; padding: 0; margin: .4rem 0; }
.legend svg { width: .9rem; height: .9rem; display: inline-block; vertical-align: -.1rem; margin-right: .35rem; }
.command { display: flex; align-items: start; gap: .5rem; margin: .35rem 0; }
.command code { background: var(--panel); padding: .25rem .5rem; flex: 1; min-width: 0; }
button { font: inherit; font-size: .875rem; color: var(--text); background: var(--panel); padding: .15rem .6rem;
  border: 1px solid var(--grey); border-radius: .3rem; }
summary { cursor: pointer; padding: .2rem 0; }
@media print { nav, button { display: none; } body { max-width: none; padding: 0; } pre { max-height: none; }
  .wide { overflow: visible; } section { break-inside: auto; } h2, h3 { break-after: avoid; }
  tr { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
  svg.plan { max-width: 100%; height: auto; } }
"""

SCRIPT = """
"use strict";
for (const one of document.querySelectorAll(".command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", () => {
    const code = one.querySelector("code");
    navigator.clipboard.writeText(code.textContent).then(
      () => { button.textContent = "Copied"; },
      () => { getSelection().selectAllChildren(code); button.textContent = "Selected"; });
  });
  one.append(button);
}
for (const one of document.querySelectorAll("time")) one.title = new Date(one.dateTime).toLocaleString();
addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
"""
