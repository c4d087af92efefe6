"use strict";
// A plot: a card with a title, a legend that says values, and uPlot's canvas. All plots of a stage share cursor and zoom.

const zoom = table([]);  // stage -> {min, max} while the reader has chosen a part of it
const shownPlots = new Set();
const LINES = [["accent"], ["ink"], ["faint"], ["accent", [5, 3]], ["ink", [5, 3]], ["faint", [5, 3]]];
const MAX_AREAS = 7;  // as many as the ramp has colours; what is smaller is added up
const MAX_POINTS = 40;  // a curve of more is a line alone
const FONT = "11px system-ui, sans-serif";

class Plot {
  constructor(plot) {
    this.plot = plot;
    this.stage = plot.stage || "rl";
    this.unit = el("span", { class: "unit", text: plot.unit });
    this.legend = el("div", { class: "legend" });
    this.canvas = el("div", { class: "canvas", role: "img", "aria-label": plot.title });
    this.element = el("section", { class: plot.large ? "plot large" : "plot" },
      el("header", {}, el("h2", { text: plot.title }), this.unit), this.legend, this.canvas);
    this.shape = "";
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  // Draw what the runs have.
  update(runs) {
    const lines = runs.length > 1 ? this.compared(runs) : this.single(runs[0]);
    const drawn = lines.filter((line) => line.values.some((value) => value !== null));
    const nothing = drawn.every((line) => !sum(line.values));
    this.element.hidden = !drawn.some((line) => !line.constant) || Boolean(this.plot.optional && nothing);
    if (this.element.hidden) return;
    if (this.plot.none && nothing) this.calm();
    else this.draw(this.plot.stack && runs.length < 2 ? areas(drawn) : drawn);
  }

  single(run) {
    const { steps, columns } = run.curves[this.stage] || NO_CURVES;
    const found = present(this.plot, columns);
    const starred = this.plot.series.some((each) => each.name.includes("*"));
    return found.map((series) => {
      const [look, dash] = starred ? lineOf(found, series) : [series.look, series.dash];
      const raw = series.constant ? steps.map(() => run.head[series.constant] || null) : columns[series.name];
      const values = series.smooth ? smoothed(raw, series.smooth) : raw;
      return { ...series, steps, values, colour: look && colour(look === "pale" ? "ramp-2" : look), dash };
    });
  }

  // Several runs, a colour each: the plot's main series, or the sum of the stacked ones.
  compared(runs) {
    const limits = this.single(runs[0]).filter((line) => line.constant);
    return limits.concat(runs.flatMap((run, number) => {
      const { steps, columns } = run.curves[this.stage] || NO_CURVES;
      const named = { steps, colour: colour(`run-${number % 6}`), label: run.name };
      if (this.plot.stack) {
        const total = columns[this.plot.total];
        const parts = present(this.plot, columns).map((series) => columns[series.name]);
        return [{ ...named, values: total || steps.map((_, at) => (parts.length ? sum(parts.map((part) => part[at])) : null)) }];
      }
      const found = present(this.plot, columns);
      const chosen = this.plot.main ? this.plot.main.map((at) => this.plot.series[at]) : found.slice(0, 1);
      return chosen.filter((series) => columns[series.name]).map((series) => ({
        ...series, ...named, label: series.points ? `${run.name}, held-out` : run.name,
        values: series.smooth ? smoothed(columns[series.name], series.smooth) : columns[series.name] }));
    }));
  }

  calm() {
    this.destroy();
    fill(this.legend);
    fill(this.canvas, el("p", { class: "empty", text: this.plot.none }));
  }

  draw(lines) {
    const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
    const place = new Map(steps.map((step, at) => [step, at]));
    this.lines = lines.map((line) => {
      const values = new Array(steps.length).fill(null);
      line.steps.forEach((step, at) => { values[place.get(step)] = line.values[at]; });
      return { ...line, values };
    });
    this.steps = steps;
    this.drawn = this.lines.filter((line) => line.colour);
    const shape = JSON.stringify([this.drawn.map(({ label, colour, dash }) => [label, colour, dash]), steps.length < 2]);
    const data = [steps, ...this.heights()];
    if (this.uplot && shape === this.shape) this.uplot.setData(data);
    else this.create(data, shape);
    this.say(this.uplot.cursor.idx);
  }

  // What is drawn: the values, of areas their sums from below, the tallest first so that the others cover it.
  heights() {
    const positive = this.plot.log ? (value) => (value > 0 ? value : null) : (value) => value;
    if (!this.drawn.some((line) => line.area)) return this.drawn.map((line) => line.values.map(positive));
    const sums = [];
    this.drawn.forEach((line, index) => {
      sums.push(line.values.map((value, at) => (value === null ? null : value + (index ? sums[index - 1][at] || 0 : 0))));
    });
    return sums.reverse();
  }

  create(data, shape) {
    this.destroy();
    fill(this.canvas);
    this.shape = shape;
    const lines = this.drawn.some((line) => line.area) ? [...this.drawn].reverse() : this.drawn;
    const few = this.steps.length < 2;
    const axis = { stroke: colour("soft"), font: FONT, ticks: { show: false }, gap: 6,
      grid: { stroke: colour("line"), width: 1 } };
    this.uplot = new uPlot({
      ...this.size(),
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, sync: { key: this.stage }, drag: { x: true, y: false, setScale: false },
        points: { size: 6 }, bind: { dblclick: () => () => zoomTo(this.stage, null) } },
      scales: { x: { time: false, range: (_, min, max) => this.across(min, max) },
        y: this.plot.log ? { distr: 3 } : { range: (_, min, max) => this.upwards(min, max) } },
      axes: [
        { ...axis, size: 24, label: this.stage === "sft" ? "supervised step" : "step", labelSize: 15, labelGap: 0,
          labelFont: FONT, space: 60, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50].flatMap((each) => [1, 100, 1e4].map((by) => each * by)).sort((a, b) => a - b),
          values: (_, splits) => splits.map((step) => step.toLocaleString("en-US")) },
        { ...axis, size: (_, values) => 12 + 6.2 * Math.max(3, ...(values || []).map((value) => (value || "").length)),
          space: 28, values: (_, splits) => this.ticks(splits),
          ...(this.plot.log ? { filter: powers, grid: { ...axis.grid, filter: powers } } : {}) },
      ],
      series: [{}, ...lines.map((line) => ({ label: line.label, stroke: line.area ? null : line.colour,
        width: line.width || (line.area ? 0 : 1.5), dash: line.dash, fill: line.area ? line.colour : undefined,
        spanGaps: !line.area, points: { show: few || Boolean(line.points && known(line) <= MAX_POINTS), size: 6, fill: line.colour, stroke: line.colour } }))],
      hooks: { setCursor: [(u) => this.say(u.cursor.idx)],
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          const [min, max] = [u.select.left, u.select.left + u.select.width].map((at) => u.posToVal(at, "x"));
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          zoomTo(this.stage, { min, max });
        }] },
    }, data, this.canvas);
    shownPlots.add(this);
  }

  destroy() {
    if (this.uplot) this.uplot.destroy();
    this.uplot = null;
    shownPlots.delete(this);
  }

  across(min, max) {
    const chosen = zoom[this.stage];
    if (chosen) return [chosen.min, chosen.max];
    return min === max ? [min - 1, max + 1] : [min, max];
  }

  upwards(min, max) {
    if (min === null || max === null) return [0, 1];
    const lowest = this.plot.floor === undefined ? min : Math.min(this.plot.floor, min);
    const highest = Math.max(max, this.plot.least || -Infinity);
    const room = (highest - lowest || Math.abs(highest) || 1) * 0.06;
    return [lowest === this.plot.floor ? lowest : lowest - room, highest + room];
  }

  ticks(splits) {
    const shown = splits.filter((value) => value !== null);
    if (this.plot.log) return splits.map((value) => (value === null ? "" : power(value)));
    const apart = shown.length > 1 ? Math.abs(shown[1] - shown[0]) : 1;
    const whole = (places) => Math.abs(apart * 10 ** places - Math.round(apart * 10 ** places)) < 1e-6;
    const places = [0, 1, 2, 3, 4].find(whole) ?? 5;
    const short = (value) => (Math.abs(value) >= 1e6 ? `${value / 1e6}M` : Math.abs(value) >= 1e4 ? `${value / 1e3}k` : value.toLocaleString("en-US"));
    return splits.map((value) => (value === null ? "" : places > 4 ? value.toExponential(0) : places ? value.toFixed(places) : short(value)));
  }

  size() {
    const width = Math.max(120, this.canvas.clientWidth);
    return { width, height: Math.max(150, this.canvas.clientHeight) };
  }

  resize() {
    if (!this.uplot) return;
    const { width, height } = this.size();
    if (width !== this.uplot.width || height !== this.uplot.height) this.uplot.setSize({ width, height });
  }

  // The legend's values: at the cursor, or the newest.
  say(at) {
    const hovers = at !== null && at !== undefined;
    this.unit.textContent = hovers ? `step ${this.steps[at].toLocaleString("en-US")} · ${this.plot.unit}` : this.plot.unit;
    const items = this.lines.map((line) => {
      let index = hovers ? at : this.steps.length - 1;
      while (index > 0 && line.values[index] === null) index -= 1;
      const swatch = line.colour ? el("i", { class: "swatch" }) : null;
      if (swatch) swatch.style.background = line.colour;
      return el("span", {}, swatch, `${line.label} `, el("b", { text: number(line.values[index]) }));
    });
    fill(this.legend, items);
    const values = this.lines.map((line) => `${line.label} ${number(line.values.at(-1))}`).join(", ");
    if (!hovers) this.canvas.setAttribute("aria-label", visible(`${this.plot.title}, ${this.plot.unit}: ${values}`));
  }
}

// Colour and dashes of one of many; what was planned has the colour of what was seen, and is dashed.
function lineOf(found, { name }) {
  const seen = (each) => each.replace("_planned_", "_");
  const names = [...new Set(found.map((series) => seen(series.name)))];
  const [look, dash] = LINES[names.indexOf(seen(name)) % LINES.length];
  return [look, name === seen(name) ? dash : [2, 3]];
}

const known = (line) => line.values.filter((value) => value !== null).length;

// The largest areas below, each in a shade of the accent; what is too small for a shade is added up.
function areas(lines) {
  const ranked = lines.filter((line) => sum(line.values)).sort((a, b) => sum(b.values) - sum(a.values));
  const shown = ranked.length > MAX_AREAS ? ranked.slice(0, MAX_AREAS - 1) : ranked;
  if (shown.length < ranked.length) {
    const rest = ranked.slice(shown.length), { steps } = rest[0];
    const added = (at) => (rest.some((line) => line.values[at] !== null) ? sum(rest.map((line) => line.values[at])) : null);
    shown.push({ label: "all else", steps, values: steps.map((_, at) => added(at)) });
  }
  return shown.map((line, index) => ({ ...line, area: true, colour: colour(`ramp-${index}`) }));
}

// 1e-7 as a power of ten; what lies between powers has no label.
function power(value) {
  const exponent = Math.round(Math.log10(value));
  if (Math.abs(Math.log10(value) - exponent) > 1e-6) return "";
  return `10${String(exponent).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])}`;
}

function powers(_, splits) {
  return splits.map((value) => (value !== null && power(value) ? value : null));
}

function zoomTo(stage, chosen) {
  zoom[stage] = chosen;
  for (const plot of shownPlots) if (plot.stage === stage) plot.uplot.setData(plot.uplot.data);
}
