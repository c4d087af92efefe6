"use strict";
// What is read first: how the run stands, how far it is, and what it reached.

const stepOf = (head) => (head.stage ? `${head.stage} ${head.step}` : "–");
const RESULTS = { held_out: "Held-out reward", reward: "Training reward", loss: "Supervised loss" };

function tile(title, value, lines, more) {
  return el("dl", { class: "tile" }, el("dt", { text: title }), el("dd", { class: "value", text: value }), more || null,
    lines.filter(Boolean).map((line) => el("dd", { text: line })));
}

function doing(head) {
  const now = head.now || {};
  if (now.starting) return now.starting;
  if (!now.phase) return "";
  return now.of ? `${now.phase} ${now.done} of ${now.of}` : now.phase;
}

function resultTile(title, ends) {
  const [first, last] = [ends[0], ends.at(-1)];
  const change = last[1] - first[1];
  const said = `${change >= 0 ? "+" : "−"}${number(Math.abs(change))}, step ${first[0]} to ${last[0]}`;
  return ends.length > 1 ? tile(title, `${number(first[1])} → ${number(last[1])}`, [said])
    : tile(title, number(last[1]), [`step ${last[0]}`]);
}

function tiles(head, now, live) {
  const results = head.results || {};
  const bar = el("div", { class: "bar" }, el("i"));
  bar.firstChild.style.width = `${head.total ? (100 * head.step) / head.total : 0}%`;
  const pace = head.step_seconds ? `${number(head.step_seconds)} s a step` : "";
  const running = head.state === "running";
  const left = head.seconds_left, until = left === undefined ? "" : date((head.time || now) + left);
  const time = running
    ? tile("Time left", until ? duration(left) : "–", [until && `until ${left < 43200 ? until.slice(11) : until}`,
      head.stage === "sft" ? "of the supervised steps" : ""])
    : tile("Time in steps", duration(head.seconds || 0), [head.time ? `to ${date(head.time)}` : "",
      head.sessions > 1 ? `started ${head.sessions} times` : ""]);
  const saved = head.checkpoint;
  const resumes = saved && !running && head.state !== "finished" ? "a restart continues after it" : "";
  const each = head.devices > 1 && head.tokens_per_s ? `${number(head.tokens_per_s / head.devices)} a device` : "";
  const shown = Object.keys(RESULTS).filter((name) => results[name]).slice(0, 2);
  return el("div", { class: "tiles" },
    tile(head.stage === "sft" ? "Supervised step" : "Step",
      head.stage ? head.step.toLocaleString("en-US") : "–",
      [[head.total ? `of ${head.total.toLocaleString("en-US")}` : "", pace].filter(Boolean).join(" · ")], bar),
    time,
    shown.map((name) => resultTile(RESULTS[name], results[name])),
    shown.length < 2 ? Array.from({ length: 2 - shown.length }, (_, at) => tile(["Held-out reward", "Training reward"][at + shown.length], "–", [])) : null,
    tile("Last checkpoint", saved ? saved.step : "none yet",
      [saved ? (live ? ago(now - saved.time) : date(saved.time)) : "", resumes]),
    tile("Tokens a second", number(head.tokens_per_s), [each]));
}

// Of one run.
function headOf(run, now, live) {
  const { head } = run;
  const about = [...head.runs_on, head.host && `host ${head.host}`, head.slime && `slime ${head.slime} ${head.commit}`.trim(),
    head.started && `started ${date(head.started)}`].filter(Boolean).join(" · ");
  return [
    el("div", { class: "top" }, el("h1", { text: run.name }), el("span", { class: `state ${head.state}`, text: head.state }),
      el("span", { class: "doing", text: doing(head) }), el("p", { class: "about", text: about })),
    head.said ? el("p", { class: "notice", text: head.said }) : null,
    tiles(head, now, live),
    head.stage ? null : el("p", { class: "notice calm", text: "No step has ended yet. The plots come with the first one." }),
  ];
}

// Of several: a line each.
function comparison(runs) {
  const titles = ["run", "state", "step", "time left", "held-out reward", "training reward"];
  const rows = runs.map(({ name, head }, number_) => {
    const swatch = el("i", { class: "swatch" });
    swatch.style.background = colour(`run-${number_ % 6}`);
    const newest = (result) => number((head.results || {})[result]?.at(-1)[1]);
    const cells = [stepOf(head) + (head.total ? ` of ${head.total}` : ""),
      head.seconds_left === undefined ? "–" : duration(head.seconds_left), newest("held_out"), newest("reward")];
    return el("tr", {}, el("td", {}, swatch, name), el("td", {}, el("span", { class: `state ${head.state}`, text: head.state })),
      cells.map((cell) => el("td", { class: "number", text: cell })));
  });
  return [el("div", { class: "top" }, el("h1", { text: `${runs.length} runs` })),
    el("div", { class: "panel scroll first" }, el("table", {}, el("tr", {}, titles.map((title) => el("th", { text: title }))), rows)),
    runs.filter(({ head }) => head.said).map(({ name, head }) => el("p", { class: "notice", text: `${name}: ${head.said}` }))];
}

// The keys in which the runs' configs differ.
function differing(runs, differences) {
  if (runs.length < 2) return null;
  const rows = differences.map(({ key, values }) =>
    el("tr", {}, el("td", { class: "key", text: key }), values.map((value) => el("td", { text: value }))));
  const titles = el("tr", {}, el("th", { text: "key" }), runs.map((run) => el("th", { text: run.name })));
  return el("section", { class: "panel" }, el("header", {}, el("h2", { text: "What differs in their configs" })),
    rows.length ? el("div", { class: "scroll" }, el("table", {}, titles, rows)) : el("p", { class: "note", text: "nothing" }));
}

function warned(runs) {
  const items = runs.flatMap((run) => run.warnings.map((warning) => ({ ...warning, run: run.name })))
    .sort((a, b) => b.time - a.time).map(({ time, text, count, run }) => el("li", {}, el("time", { text: date(time) }),
      runs.length > 1 ? `${run}: ` : "", text, count > 1 ? ` (${count} times)` : ""));
  return items.length ? el("section", { class: "panel" }, el("header", {}, el("h2", { text: "Warnings" })),
    el("ul", { class: "warnings" }, items)) : null;
}
