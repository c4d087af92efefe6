"use strict";
// The page: takes what the server tells, or what it was frozen with, and shows it.

(function main() {
  const INTERVAL_MS = 1000;
  const frozen = JSON.parse(document.getElementById("data").textContent);
  const key = location.hash.slice(1);
  const runs = [];
  const plots = PLOTS.map((plot) => new Plot(plot));
  const any = el("select", { "aria-label": "metric", onchange: () => drawAny() });
  const anyPlot = el("div", { class: "any" });
  const head = el("div", {}), below = el("div", {}), warnings = el("div", {}), problem = el("div", {});
  const samples = new Samples((run, name) => (frozen ? frozen.runs[run].samples.files[name] : ask(`/samples?run=${run}&name=${name}`)));
  const texts = el("div", {});
  const footer = el("footer", {});
  fill(document.getElementById("page"), problem, head, el("div", { class: "plots" }, plots.map((plot) => plot.element)),
    below, samples.element, warnings,
    el("details", { class: "fold", ontoggle: () => drawAny() }, el("summary", { text: "Any metric" }), any, anyPlot), texts, footer);

  async function ask(path) {
    const response = await fetch(path, { headers: { Authorization: `Bearer ${key}` }, cache: "no-store" });
    if (!response.ok) throw new Error(await response.text());
    return response.json();
  }

  // Lay what came over what is there: of each curve the points from `from` on.
  function take(told) {
    told.runs.forEach((part, number_) => {
      const run = (runs[number_] = runs[number_] || { curves: table([]), samples: { names: [], cursor: "" } });
      Object.assign(run, { name: part.name, head: part.head, warnings: part.warnings });
      run.samples = part.samples || run.samples;
      for (const [stage, curves] of Object.entries(part.curves)) {
        const before = curves.from ? run.curves[stage] : NO_CURVES;
        const laid = (old, added) => [...(old || []).slice(0, curves.from), ...added];
        run.curves[stage] = { cursor: curves.cursor, steps: laid(before.steps, curves.steps),
          columns: table(Object.entries(curves.columns).map(([name, values]) => [name, laid(before.columns[name], values)])) };
      }
    });
    const changed = told.runs.some((part) => Object.keys(part.curves).length);
    show(told, changed);
  }

  function show(told, changed) {
    const several = runs.length > 1;
    document.title = visible(several ? `${runs.length} runs` : `${runs[0].name} · ${stepOf(runs[0].head)}`);
    fill(head, several ? comparison(runs) : headOf(runs[0], told.now, !frozen));
    fill(below, differing(runs, told.differences));
    fill(warnings, warned(runs));
    if (changed) {
      plots.forEach((plot) => plot.update(runs));
      drawAny();
    }
    samples.update(runs);
    footer.textContent = frozen ? `Written ${date(told.now)}. Drag over a plot to enlarge a part of it, double-click to see all.`
      : "Follows the run. Drag over a plot to enlarge a part of it, double-click to see all.";
  }

  // The plot of a metric that the reader chooses.
  function drawAny() {
    const named = new Set(runs.flatMap((run) => Object.entries(run.curves).flatMap(([stage, { columns }]) =>
      Object.keys(columns).map((name) => `${stage} ${name}`))));
    options(any, [...named].sort().map((name) => [name, name]));
    if (!any.value || !any.closest("details").open) return;
    const [stage, name] = any.value.split(" ");
    if (anyPlot.plot?.plot.title !== name || anyPlot.plot.stage !== stage) {
      anyPlot.plot?.destroy();
      anyPlot.plot = new Plot({ title: name, unit: "", stage, series: [{ label: "value", name, look: "accent" }] });
      fill(anyPlot, anyPlot.plot.element);
    }
    anyPlot.plot.update(runs);
  }

  function folded(found) {
    const several = runs.length > 1;
    return found.flatMap((of_run, number_) => of_run.map(({ title, text }) => el("details", { class: "fold" },
      el("summary", { text: several ? `${runs[number_].name}: ${title}` : title }), el("pre", { class: "panel text", text }))));
  }

  async function loadTexts() {
    fill(texts, folded(await Promise.all(runs.map((_, number_) => ask(`/texts?run=${number_}`)))));
  }

  async function follow() {
    try {
      const have = runs.map((run) => ({ samples: run.samples.cursor,
        ...Object.fromEntries(Object.entries(run.curves).map(([stage, { cursor }]) => [stage, cursor])) }));
      take(await ask(`/data?have=${encodeURIComponent(JSON.stringify(have))}`));
      fill(problem);
    } catch (error) {
      const said = error instanceof TypeError ? "'slime watch' does not answer: it was ended, or the way to it is cut." : error.message;
      fill(problem, el("p", { class: "notice", text: said }));
    }
    setTimeout(follow, document.hidden ? 5 * INTERVAL_MS : INTERVAL_MS);
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => runs.length && plots.forEach((plot) => plot.update(runs)));
  if (frozen) {
    take(frozen);
    fill(texts, folded(frozen.runs.map((run) => run.texts)));
  } else {
    fill(texts, el("details", { class: "fold", ontoggle: loadTexts }, el("summary", { text: "Summary, versions and config" })));
    follow();
  }
})();
