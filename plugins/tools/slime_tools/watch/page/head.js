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
  const shown = Object.keys(RESULTS).filter((name) => results[name]).slice(0, 2).map((name) => resultTile(RESULTS[name], results[name]));
  if (!shown.length) shown.push(tile(head.stage === "sft" ? RESULTS.loss : RESULTS.reward, "–", ["no step has ended yet"]));
  if (shown.length < 2) shown.push(tile("Tokens seen", number(head.tokens || null), [head.stage === "sft" ? "in supervised steps" : "in training"]));
  return el("div", { class: "tiles" },
    tile(head.stage === "sft" ? "Supervised step" : "Step",
      head.stage ? head.step.toLocaleString("en-US") : "–",
      [[head.total ? `of ${head.total.toLocaleString("en-US")}` : "", pace].filter(Boolean).join(" · ")], bar),
    time,
    shown,
    tile("Last checkpoint", saved ? saved.step : "none yet",
      [saved ? (live ? ago(now - saved.time) : date(saved.time)) : "", resumes]),
    tile("Tokens a second", number(head.tokens_per_s), [each || "mean, without evaluations"]));
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

function warned(runs) {
  const items = runs.flatMap((run) => run.warnings.map((warning) => ({ ...warning, run: run.name })))
    .sort((a, b) => b.time - a.time).map(({ time, text, count, run }) => el("li", {}, el("time", { text: date(time) }),
      runs.length > 1 ? `${run}: ` : "", text, count > 1 ? ` (${count} times)` : ""));
  return items.length ? el("section", { class: "panel" }, el("header", {}, el("h2", { text: "Warnings" })),
    el("ul", { class: "warnings" }, items)) : null;
}
