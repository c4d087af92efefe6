"use strict";
// Samples: of a step or an evaluation the best and the worst answers. Every text is a text node.

const titleOf = (name) => {
  const [kind, step] = [name.split("-")[0], Number(name.split("-")[1])];
  return kind === "eval" ? `held-out, step ${step}` : `training, step ${step}`;
};

function saidOf(answer) {
  const parts = Object.entries(answer.parts || {});
  const versions = [...new Set((answer.weight_versions || []).map(([version]) => version))];
  const judged = answer.reward === null
    ? el("span", { class: "failure", text: `${answer.verdict || "not scored"}${answer.reason ? `: ${answer.reason}` : ""}` })
    : el("span", {}, "reward ", el("b", { text: number(answer.reward) }));
  return el("p", { class: "verdict" }, el("span", { text: answer.heading }), judged,
    parts.map(([name, value]) => el("span", { class: "chip", text: `${name} ${number(value)}` })),
    el("span", { text: `${answer.num_tokens.toLocaleString("en-US")} tokens` }), el("span", { text: answer.finish }),
    versions.length ? el("span", { text: `weights ${versions.join(", ")}` }) : null);
}

// What somebody said; what a tool is asked and what it answers is folded.
function turn({ role, text, calls }, alone) {
  const body = el("pre", { class: "text", dir: "auto", text });
  const folded = calls.map((call) => el("details", {}, el("summary", { text: `calls a tool (${call.length} characters)` }),
    el("pre", { class: "text", text: call })));
  if (role === "tool") {
    return el("div", { class: "turn" }, el("details", {}, el("summary", { text: `tool answers (${text.length} characters)` }), body));
  }
  return el("div", { class: "turn" }, alone ? null : el("span", { class: "who", text: role }), text || alone ? body : null, folded);
}

function card({ prompt, label, filter, asked, answers }) {
  const about = [`prompt ${prompt}`, `label ${label}`, filter && filter !== "kept" ? `dropped: ${filter}` : ""];
  return el("article", { class: "card" },
    el("p", { class: "note", text: about.filter(Boolean).join(" · ") }),
    asked.map((message) => turn(message, false)),
    el("div", { class: answers.length > 1 ? "answers" : "answers one" }, answers.map((answer) =>
      el("div", {}, saidOf(answer), answer.turns.map((each) => turn(each, answer.turns.length === 1))))));
}

class Samples {
  // `load(run number, name)` gives a file's content.
  constructor(load) {
    this.load = load;
    this.run = el("select", { "aria-label": "run", onchange: () => this.choose(true) });
    this.name = el("select", { "aria-label": "step", onchange: () => this.choose(false) });
    this.note = el("span", { class: "note" });
    this.cards = el("div", {});
    this.element = el("section", { class: "panel", hidden: true },
      el("header", {}, el("h2", { text: "Samples" }), this.run, this.name, this.note), this.cards);
    this.follows = "";
    this.shown = "";
  }

  update(runs) {
    this.runs = runs;
    this.element.hidden = !runs.some((run) => run.samples.names.length);
    this.run.hidden = runs.length < 2;
    options(this.run, runs.map((run, number_) => [String(number_), run.name]));
    const names = [...this.names()].reverse();
    const fresh = ["step", "eval"].map((kind) => names.find((name) => name.startsWith(kind))).filter(Boolean);
    const newest = fresh.map((name) => [`newest ${name.split("-")[0]}`, `newest: ${titleOf(name)}`]);
    options(this.name, [...newest, ...names.map((name) => [name, titleOf(name)])]);
    this.show();
  }

  names() {
    return this.runs[Number(this.run.value || 0)].samples.names;
  }

  choose(other) {
    if (other) this.update(this.runs);
    this.show();
  }

  async show() {
    const [word, kind] = this.name.value.split(" ");
    const name = word === "newest" ? this.names().filter((each) => each.startsWith(kind)).at(-1) : word;
    const run = Number(this.run.value || 0);
    const wanted = name ? `${run} ${name} ${this.runs[run].samples.cursor}` : "";
    if (!name || wanted === this.shown) return;
    this.shown = wanted;
    const file = await this.load(run, name);
    if (this.shown !== wanted) return;
    this.note.textContent = `${file.samples.toLocaleString("en-US")} samples of ${file.prompts.toLocaleString("en-US")} prompts are kept`;
    fill(this.cards, file.cards.map(card));
  }
}

// Set what can be chosen, and leave what is chosen if it still can be.
function options(select, pairs) {
  const key = JSON.stringify(pairs);
  if (select.dataset.key === key) return;
  const before = select.value;
  fill(select, pairs.map(([value, text]) => el("option", { value, text })));
  if (pairs.some(([value]) => value === before)) select.value = before;
  select.dataset.key = key;
}
