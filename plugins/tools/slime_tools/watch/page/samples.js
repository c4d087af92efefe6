"use strict";
// Samples: of a step or an evaluation the best and the worst answers, or those that the reader looks for; and what changed
// in the answers to a prompt from one step to another. Every text is a text node.

const SHOWN_ROWS = "demonstrations";
const titleOf = (name) => {
  if (name === SHOWN_ROWS) return "supervised steps learn from";
  const [kind, step] = [name.split("-")[0], Number(name.split("-")[1])];
  return kind === "eval" ? `held-out, step ${step}` : `training, step ${step}`;
};

function saidOf(answer) {
  const parts = Object.entries(answer.parts || {});
  const versions = [...new Set((answer.weight_versions || []).map(([version]) => version))];
  if (answer.num_tokens === undefined) return el("p", { class: "verdict" }, el("span", { text: answer.heading }));
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

const spoken = (answer) => answer.turns.map((each) => each.text).join("\n");

class Samples {
  // `load(run number, query)` gives what was asked for: a file's content by its `name`, less what is not wanted.
  constructor(load) {
    this.load = load;
    this.run = el("select", { "aria-label": "run", onchange: () => this.update(this.runs) });
    this.name = el("select", { "aria-label": "step", onchange: () => this.show() });
    const field = (attributes) => el("input", { ...attributes, onchange: () => this.show() });
    this.text = field({ type: "search", placeholder: "words of prompt or response", "aria-label": "find samples" });
    this.least = field({ type: "number", step: "any", placeholder: "least", "aria-label": "least reward" });
    this.most = field({ type: "number", step: "any", placeholder: "most", "aria-label": "most reward" });
    this.note = el("span", { class: "note", role: "status" });
    this.cards = el("div", {});
    this.element = el("section", { class: "panel", hidden: true },
      el("header", {}, el("h2", { text: "Samples" }), this.run, this.name, this.text,
        el("span", { class: "range" }, "reward", this.least, "to", this.most), this.note), this.cards);
    this.shown = "";
  }

  update(runs) {
    this.runs = runs;
    this.element.hidden = !runs.some((run) => run.samples.names.length);
    if (this.element.hidden) return;
    this.run.hidden = runs.length < 2;
    options(this.run, runs.map((run) => [String(run.number), run.name]));
    const names = [...this.names()].reverse();
    const fresh = ["step", "eval"].map((kind) => names.find((name) => name.startsWith(kind))).filter(Boolean);
    const newestOnes = fresh.map((name) => [`newest ${name.split("-")[0]}`, `newest: ${titleOf(name)}`]);
    options(this.name, [...newestOnes, ...names.map((name) => [name, titleOf(name)]), ...(fresh.length ? [["all steps", "all steps"]] : [])]);
    this.show();
  }

  chosen() {
    return this.runs.find((run) => String(run.number) === this.run.value) || this.runs[0];
  }

  names() {
    return this.chosen().samples.names;
  }

  async show() {
    const [word, kind] = this.name.value.split(" ");
    const name = word === "newest" ? this.names().filter((each) => each.startsWith(kind)).at(-1) : word === "all" ? "" : word;
    const run = this.chosen();
    const given = { name, text: this.text.value, least: this.least.value, most: this.most.value };
    const query = Object.fromEntries(Object.entries(given).filter(([, value]) => value));
    const wanted = JSON.stringify([run.number, query, name && name !== this.names().at(-1) ? "" : run.samples.cursor]);
    if (name === undefined || wanted === this.shown) return;
    this.shown = wanted;
    let file;
    try {
      file = await this.load(run.number, query);
    } catch (error) {
      file = { samples: 0, prompts: 0, cards: [], said: error.message };
    }
    if (this.shown !== wanted) return;
    const searched = given.text || given.least || given.most;
    const [rows, prompts] = [file.samples, file.prompts].map((count) => count.toLocaleString("en-US"));
    this.note.textContent = file.said || (name === SHOWN_ROWS ? `the first ${rows} rows`
      : `${rows} samples of ${prompts} prompts are ${searched ? "found" : "kept"}`);
    fill(this.cards, file.cards.map((each) => this.card(each, run)));
  }

  card(card, run) {
    const about = [this.name.value === "all steps" ? titleOf(card.name) : "", `prompt ${card.prompt}`,
      card.label === undefined ? "" : `label ${card.label}`, card.filter && card.filter !== "kept" ? `dropped: ${card.filter}` : ""];
    const others = card.name === SHOWN_ROWS ? [] : run.samples.names.filter((name) => name !== card.name && name !== SHOWN_ROWS).reverse();
    const compared = el("div", {});
    const choice = el("select", { "aria-label": "compare with another step", onchange: async () => {
      fill(compared, choice.value ? await this.comparison(card, run, choice.value) : null);
    } }, el("option", { value: "", text: "compare with …" }), others.map((name) => el("option", { value: name, text: titleOf(name) })));
    return el("article", { class: "card" },
      el("p", { class: "note" }, about.filter(Boolean).join(" · "), others.length ? choice : null),
      card.asked.map((message) => turn(message, false)),
      el("div", { class: card.answers.length > 1 ? "answers" : "answers one" }, card.answers.map((answer) =>
        el("div", {}, saidOf(answer), answer.turns.map((each) => turn(each, answer.turns.length === 1))))),
      compared);
  }

  // The best answer there and here, the earlier one first.
  async comparison(card, run, name) {
    const found = await this.load(run.number, { of: card.name, prompt: card.prompt, name });
    const other = found.cards[0];
    if (!other) return el("p", { class: "note", text: `${titleOf(name)} has no sample of this prompt.` });
    const stepOf_ = (each) => Number(each.name.split("-")[1]);
    const [before, after] = [other, card].sort((a, b) => stepOf_(a) - stepOf_(b));
    const heading = `${titleOf(before.name)}, reward ${number(before.answers[0].reward)} → ${titleOf(after.name)}, reward ${number(after.answers[0].reward)}`;
    return el("div", { class: "turn difference" }, el("p", { class: "note", text: heading }),
      shownDifference(spoken(before.answers[0]), spoken(after.answers[0])));
  }
}

// What the server does, for a page that was frozen: among the cards that it has.
function amongKept(files, { name, text, least, most, of, prompt }) {
  if (prompt !== undefined) {
    const asked = JSON.stringify(files[of].cards.find((card) => card.prompt === prompt).asked);
    return { samples: 0, prompts: 0, cards: files[name].cards.filter((card) => JSON.stringify(card.asked) === asked) };
  }
  if (name && !text && !least && !most) return files[name];
  const cards = (name ? [files[name]] : Object.values(files).reverse()).flatMap((file) => file.cards).filter(({ asked, answers }) => {
    const texts = [...asked, ...answers.flatMap((answer) => answer.turns)].map((each) => each.text.toLowerCase());
    const within = answers.some(({ reward }) => reward !== null && reward >= (least || -Infinity) && reward <= (most || Infinity));
    return (!text || texts.some((each) => each.includes(text.toLowerCase()))) && (within || (!least && !most));
  });
  return { samples: sum(cards.map((card) => card.answers.length)), prompts: cards.length, cards };
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
