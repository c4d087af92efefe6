"use strict";
// The page: takes what the server tells, or what it was frozen with, and shows it.

(function main() {
  const INTERVAL_MS = 1000;
  const PATIENCE = 10;  // times as long as an answer took until the next is asked for: a folder of many runs takes longer
  const MOST = [[1, 1024], [12, 400], [60, 200], [Infinity, 80]];  // points of a curve, by how many runs are drawn
  const AT_ONCE = 20;  // runs that are asked for first in one go
  const frozen = JSON.parse(document.getElementById("data").textContent);
  const settings = new Settings();
  const runs = [];
  let drawn = null, differences = [], version = 0, cursor = "", timer = 0, now = 0, tier = "";
  const plots = PLOTS.map((plot) => new Plot(plot, settings, hide));
  const any = el("select", { "aria-label": "metric", onchange: () => drawAny() });
  const anyPlot = el("div", { class: "any" });
  const head = el("div", {}), notices = el("div", {}), warnings = el("div", {}), problem = el("div", {}), texts = el("div", {}), footer = el("footer", {});
  const list = new Runs(toggle), controls = settings.controls();
  const samples = new Samples((run, query) => (frozen ? amongKept(frozen.runs[run].samples.files, query) : ask(`/samples?${new URLSearchParams({ run, ...query })}`)));
  fill(document.getElementById("page"), problem, head, notices, controls, el("div", { class: "plots" }, plots.map((plot) => plot.element)),
    samples.element, warnings,
    el("details", { class: "fold", ontoggle: () => drawAny() }, el("summary", { text: "Any metric" }), any, anyPlot), texts, footer);

  async function ask(path) {
    const response = await fetch(path, { headers: { Authorization: `Bearer ${settings.key}` }, cache: "no-store" });
    if (!response.ok) throw new Error(await response.text());
    return response.json();
  }

  const runAt = (number_) => (runs[number_] ||= { number: number_, name: "", head: {}, curves: table([]), samples: { names: [], cursor: "" }, warnings: [] });

  const tierOf = (most, names) => JSON.stringify([most, names]);

  // Lay what came over what is there: of each curve the points from `from` on.
  function take(told) {
    if (!drawn) tier = tierOf(told.most, null);
    for (let number_ = 0; number_ < (told.count ?? told.runs.length); number_ += 1) runAt(number_);
    for (const [number_, { name, head: brief }] of Object.entries(told.listed || {})) {
      const run = runAt(Number(number_));
      Object.assign(run, { name, brief });
      if (!isDrawn(run)) run.head = brief;
    }
    [version, cursor, differences, now] = [told.version ?? version, told.cursor ?? cursor, told.differences ?? differences, told.now];
    told.runs.forEach((part, at) => {
      const run = runAt(part.number ?? at);
      Object.assign(run, { name: part.name, head: part.head, warnings: part.warnings, group: part.group, tier });
      run.samples = part.samples || run.samples;
      for (const [stage, curves] of Object.entries(part.curves)) lay(run.curves, stage, curves);
    });
    if (!drawn) {
      const chosen = settings.runs.split(",").map(decodeURIComponent);
      const named = settings.runs ? runs.filter((run) => chosen.includes(run.name)) : [];
      drawn = [];
      draw(named.length ? named : told.runs.map((part, at) => runAt(part.number ?? at)));
    }
    show(told.runs.some((part) => Object.keys(part.curves).length));
  }

  function lay(curvesOf, stage, curves) {
    const before = curves.from ? curvesOf[stage] : NO_CURVES;
    const laid = (old, added) => [...(old || []).slice(0, curves.from), ...added];
    const all = (part) => curves[part] && table(Object.entries(curves[part]).map(([name, values]) => [name, laid(before[part]?.[name], values)]));
    curvesOf[stage] = { cursor: curves.cursor, names: curves.names, steps: laid(before.steps, curves.steps),
      columns: all("columns"), lows: all("lows"), highs: all("highs") };
  }

  const isDrawn = (run) => Boolean(drawn?.includes(run));

  // Each drawn run has a colour: the first that no other has.
  function draw(added) {
    for (const run of added.filter((each) => !isDrawn(each))) {
      const taken = new Set(drawn.map((each) => each.slot));
      run.slot = 0;
      while (taken.has(run.slot)) run.slot += 1;
      drawn.push(run);
    }
    drawn.sort((a, b) => a.number - b.number);
  }

  function toggle(changed, shown) {
    if (shown) draw(changed);
    else drawn = drawn.filter((run) => !changed.includes(run));
    settings.set({ runs: drawn.length < Math.min(runs.length, 30) ? drawn.map((run) => encodeURIComponent(run.name)).join(",") : "" });
    cursor = "";  // of what differs among others
    if (frozen) differences = frozen.differences.map(({ key, values }) => ({ key, values: drawn.map((run) => values[run.number]) }))
      .filter(({ values }) => new Set(values).size > 1);
    show(true);
    if (!frozen) follow();
  }

  function hide(run) {
    toggle([run], false);
  }

  function show(changed) {
    const several = runs.length > 1;
    document.title = visible(several ? `${runs.length} runs` : `${runs[0].name} · ${stepOf(runs[0].head)}`);
    if (several) {
      if (!head.contains(list.element)) fill(head, list.element);
      list.update(runs, drawn, differences.filter(({ values }) => values.length === drawn.length));
      fill(notices, drawn.filter((run) => run.head.said).map((run) => el("p", { class: "notice", text: `${run.name}: ${run.head.said}` })));
    } else fill(head, headOf(runs[0], now, !frozen));
    fill(warnings, warned(drawn));
    controls.hidden = !drawn.some((run) => Object.keys(run.curves).length);
    settings.grouping.hidden = !several;
    if (changed) {
      drawAll();
      drawAny();
    }
    samples.update(drawn);
    footer.textContent = `${frozen ? `Written ${date(now)}.` : "Follows the run."} Drag over a plot to enlarge a part of it, double-click to see all.`;
  }

  function drawAll() {
    drawSoon(plots.filter((plot) => plot.update(drawn)), true);
    if (anyPlot.plot?.update(drawn)) drawSoon([anyPlot.plot], true);
    markPlot();
  }

  // The plot that a link names.
  function markPlot() {
    for (const { element, plot } of plots) {
      const chosen = plot.title === settings.plot && !element.hidden;
      if (chosen && !element.classList.contains("chosen")) element.scrollIntoView({ block: "center" });
      element.classList.toggle("chosen", chosen);
    }
  }

  // The plot of a metric that the reader chooses.
  function drawAny() {
    const named = new Set(drawn.flatMap((run) => Object.entries(run.curves).flatMap(([stage, { names }]) => names.map((name) => `${stage} ${name}`))));
    options(any, [...named].sort().map((name) => [name, name]));
    if (!any.value || !any.closest("details").open) return;
    const [stage, name] = any.value.split(" ");
    if (anyPlot.plot?.plot.title !== name || anyPlot.plot.stage !== stage) {
      anyPlot.plot?.destroy();
      anyPlot.plot = new Plot({ title: name, unit: "", stage, series: [{ label: "value", name, look: "accent" }] }, settings, hide);
      fill(anyPlot, anyPlot.plot.element);
    }
    if (anyPlot.plot.update(drawn)) drawSoon([anyPlot.plot], true);
  }

  function folded(found) {
    const several = runs.length > 1;
    return found.flatMap(([run, of_run]) => of_run.map(({ title, text }) => el("details", { class: "fold" },
      el("summary", { text: several ? `${run.name}: ${title}` : title }), el("pre", { class: "panel text", text }))));
  }

  async function loadTexts() {
    fill(texts, folded(await Promise.all(drawn.map(async (run) => [run, await ask(`/texts?run=${run.number}`)]))));
  }

  // What is asked for: of many runs fewer points, and only what they are compared by.
  function have() {
    if (!drawn) return {};
    const most = MOST.find(([count]) => drawn.length <= count)[1];
    const names = drawn.length > MANY ? [...comparedNames(), ...(any.value ? [any.value.split(" ")[1]] : [])] : null;
    tier = tierOf(most, names);
    const fresh = drawn.filter((run) => run.tier !== tier), asked = new Set([...drawn.filter((run) => run.tier === tier), ...fresh.slice(0, AT_ONCE)]);
    const cursors = (run) => ({ samples: run.samples.cursor,
      ...(run.tier === tier ? Object.fromEntries(Object.entries(run.curves).map(([stage, curves]) => [stage, curves.cursor])) : {}) });
    const wanted = drawn.filter((run) => asked.has(run)).map((run) => [run.number, cursors(run)]);
    return { since: version, differences: cursor, most, names, runs: Object.fromEntries(wanted) };
  }

  const isWhole = () => !drawn || drawn.every((run) => run.tier === tier);

  async function follow() {
    clearTimeout(timer);
    const mine = (follow.newest = {}), began = performance.now();
    try {
      const told = await ask(`/data?have=${encodeURIComponent(JSON.stringify(have()))}`);
      if (follow.newest !== mine) return;
      take(told);
      fill(problem);
    } catch (error) {
      if (follow.newest !== mine) return;
      const said = error instanceof TypeError ? "'slime watch' does not answer: it was ended, or the way to it is cut." : error.message;
      fill(problem, el("p", { class: "notice", text: said }));
    }
    const rest = Math.max(document.hidden ? 5 * INTERVAL_MS : INTERVAL_MS, PATIENCE * (performance.now() - began));
    timer = setTimeout(follow, isWhole() ? rest : 0);
  }

  settings.listeners.push((changes) => {
    if ("x" in changes) for (const stage of Object.keys(zoom)) delete zoom[stage];
    if ("plot" in changes) markPlot();
    else if (!("runs" in changes)) drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => runs.length && drawAll());
  if (frozen) {
    take(frozen);
    fill(texts, folded(frozen.runs.map((run, at) => [runs[at], run.texts])));
  } else {
    fill(texts, el("details", { class: "fold", ontoggle: loadTexts }, el("summary", { text: "Summary, versions and config" })));
    follow();
  }
})();
