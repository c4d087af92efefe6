"use strict";
// Several runs: what differs in their configs, and a table in which a click on a name takes a run into the plots or out.

const MANY_RUNS = 12;  // more get a field to look for names
const MAX_COLUMNS = 8;  // runs side by side; more stand below each other
const newest = (head, result) => (head.results || {})[result]?.at(-1)?.[1];
const COLUMNS = [
  ["run", (run) => run.name], ["state", (run) => run.head.state], ["step", (run) => run.head.step],
  ["time left", (run) => run.head.seconds_left], ["held-out reward", (run) => newest(run.head, "held_out")],
  ["training reward", (run) => newest(run.head, "reward")], ["loss", (run) => newest(run.head, "loss")],
  ["started", (run) => run.head.started],
];
const SHOWN = { step: (value, { head }) => (head.stage ? `${stepOf(head)}${head.total ? ` of ${head.total}` : ""}` : "–"),
  "time left": (value) => (value === undefined ? "–" : duration(value)), started: (value) => date(value) };

class Runs {
  // `toggle(runs, drawn)` takes runs into the plots or out.
  constructor(toggle) {
    this.toggle = toggle;
    this.order = null;  // [title, descending]; null: as they came
    this.title = el("h1", {});
    this.search = el("input", { type: "search", placeholder: "part of a name", "aria-label": "find runs", oninput: () => this.draw() });
    const all = (text, drawn) => el("button", { type: "button", text, onclick: () => this.toggle(this.found(), drawn) });
    this.tools = el("div", { class: "controls" }, this.search, all("draw these", true), all("draw none of these", false));
    this.table = el("table", {});
    this.different = el("div", {});
    this.scroll = el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "runs" }, this.table);
    this.element = el("div", {}, el("div", { class: "top" }, this.title), this.different,
      el("div", { class: "panel" }, this.tools, this.scroll));
  }

  update(runs, drawn, differences) {
    Object.assign(this, { runs, drawn });
    this.title.textContent = drawn.length < runs.length ? `${runs.length} runs, ${drawn.length} drawn` : `${runs.length} runs`;
    this.tools.hidden = runs.length <= MANY_RUNS;
    const key = JSON.stringify([differences, drawn.map((run) => run.name)]);
    if (key !== this.differed) fill(this.different, differing(drawn, differences));
    this.differed = key;
    this.draw();
  }

  found() {
    return this.runs.filter((run) => run.name.toLowerCase().includes(this.search.value.toLowerCase()));
  }

  draw() {
    const found = this.found();
    const titles = COLUMNS.filter(([title, value]) => title === "run" || found.some((run) => ![undefined, null].includes(value(run))));
    if (this.order) {
      const [title, falls] = this.order, value = COLUMNS.find(([each]) => each === title)[1];
      const compare = (a, b) => (a > b) - (a < b);
      const missing = (run) => [undefined, null].includes(value(run));
      found.sort((a, b) => missing(a) - missing(b) || (falls ? -1 : 1) * compare(value(a), value(b)));
    }
    const cells = found.map((run) => titles.map(([title, value]) => (SHOWN[title] || ((each) => (typeof each === "number" || !each ? number(each) : each)))(value(run), run)));
    const key = JSON.stringify([cells, titles.map(([title]) => title), this.order, found.map((run) => [this.drawn.includes(run), run.slot])]);
    if (key === this.key) return;
    this.key = key;
    refill(this.table, el("tr", {}, titles.map(([title]) => this.header(title))), found.map((run, at) => this.row(run, titles, cells[at])));
  }

  header(title) {
    const [chosen, falls] = this.order || [];
    const next = chosen !== title ? [title, false] : falls ? null : [title, true];
    const button = el("button", { type: "button", "data-name": `by ${title}`, text: title, onclick: () => { this.order = next; this.draw(); } });
    return el("th", { "aria-sort": chosen === title ? (falls ? "descending" : "ascending") : null }, button);
  }

  row(run, titles, cells) {
    const shown = this.drawn.includes(run), swatch = el("i", { class: "swatch" });
    if (shown) swatch.style.background = colour(`run-${run.slot % 6}`);
    const name = el("button", { type: "button", class: "name", "data-name": `run ${run.name}`, "aria-pressed": String(shown),
      title: shown ? "hide" : "draw", onclick: () => this.toggle([run], !shown) }, swatch, run.name);
    return el("tr", { class: shown ? null : "hidden-run" }, cells.map((cell, at) => {
      const [title] = titles[at];
      if (title === "run") return el("td", {}, name);
      if (title === "state") return el("td", {}, el("span", { class: `state ${cell}`, text: cell }));
      return el("td", { class: "number", text: cell });
    }));
  }
}

// The keys in which the drawn runs' configs differ.
function differing(runs, differences) {
  if (runs.length < 2) return null;
  const values = (row) => row.values.map((value) => el("td", { text: value }));
  const names = runs.map((run) => el("th", { scope: "col", text: run.name }));
  const beside = runs.length <= MAX_COLUMNS;
  const rows = beside ? differences.map((row) => el("tr", {}, el("td", { class: "key", text: row.key }), values(row)))
    : runs.map((run, at) => el("tr", {}, el("td", { text: run.name }), differences.map((row) => el("td", { text: row.values[at] }))));
  const titles = el("tr", {}, el("th", { text: beside ? "key" : "run" }),
    beside ? names : differences.map(({ key }) => el("th", { class: "key", text: key })));
  return el("section", { class: "panel first" }, el("header", {}, el("h2", { text: "What differs in their configs" })),
    differences.length ? el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "differences" }, el("table", {}, titles, rows))
      : el("p", { class: "note", text: "nothing" }));
}
