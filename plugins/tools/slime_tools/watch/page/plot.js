"use strict";
// A plot: a card with a title, a legend that says values, and uPlot's canvas. All plots of a stage share cursor and zoom.

const zoom = table([]);  // stage -> {min, max} while the reader has chosen a part of it
const shownPlots = new Set();
const undrawn = new Map();  // plot -> whether its lines have to be made again, or only their scale
const MAX_ITEMS = 24;  // lines of a legend; of more it shows the one beside the cursor
const MAX_POINTS = 40;  // a curve of more is a line alone
const FONT = "11px system-ui, sans-serif";
const SECONDS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 864000];
const STEPS = [1, 100, 1e4].flatMap((by) => [1, 2, 5, 10, 20, 50].map((each) => each * by));

class Plot {
  // `settings` are the reader's; `hide(run)` takes a run out of all plots.
  constructor(plot, settings, hide) {
    Object.assign(this, { plot, settings, hide, stage: plot.stage || "rl", shape: "" });
    this.unit = el("span", { class: "unit", text: plot.unit });
    this.legend = el("div", { class: "legend" });
    this.canvas = el("div", { class: "canvas", role: "img", tabindex: 0, "aria-label": plot.title, onkeydown: (event) => this.step(event) });
    const button = (text, does) => el("button", { type: "button", text, onclick: () => { this.tools.open = false; does(); } });
    this.tools = el("details", { class: "tools" }, el("summary", { "aria-label": `files of ${plot.title}`, text: "⋯" }),
      el("div", {}, button("Data as CSV", () => this.saveData()), button("Picture as PNG", () => this.savePicture()),
        button("Link to this plot", () => settings.set({ plot: plot.title }))));
    this.element = el("section", { class: "plot" },
      el("header", {}, el("h2", { text: plot.title }), this.unit, this.tools), this.legend, this.canvas);
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    new IntersectionObserver((entries) => { this.offScreen = !entries.at(-1).isIntersecting; }).observe(this.element);
  }

  // Whether there is something to draw of these runs; `draw` draws it.
  update(runs) {
    const { series, large, total } = this.plot;
    const has = ({ columns }) => {
      if (runs.length > 1 && columns[total]) return true;  // of many runs it came without its parts
      const named = series.filter((each) => !each.constant && present({ ...this.plot, series: [each] }, columns).length);
      return named.length && (!this.plot.optional || named.some((each) =>
        present({ ...this.plot, series: [each] }, columns).some(({ name }) => columns[name].some(Boolean))));
    };
    this.several = runs.length > 1;
    this.runs = runs.filter((run) => run.curves[this.stage]);
    this.element.hidden = !this.runs.some((run) => has(run.curves[this.stage]));
    this.element.classList.toggle("large", large === true || (large === "alone" && !runs.some((run) => run.curves.rl)));
    return !this.element.hidden;
  }

  draw(whole) {
    if (!whole && this.uplot) return this.uplot.setData(this.uplot.data);
    const { xs, lines } = linesOf(this.plot, this.stage, this.runs, this.several, this.settings);
    Object.assign(this, { xs, lines, log: !this.plot.stack && (this.plot.log || this.settings.log) });
    this.drawn = this.lines.filter((line) => line.colour);
    const { series, data, bands } = this.laid();
    const looks = this.drawn.map(({ label, colour: own, dash, behind, highs }) => [label, own, dash, !!behind, !!highs]);
    const shape = JSON.stringify([looks, xs.length < 2, this.log, this.settings.x]);
    if (this.uplot && shape === this.shape) this.uplot.setData(data);
    else this.create(series, data, bands, shape);
    return this.say(this.uplot.cursor.idx);
  }

  // uPlot's series, their values and bands: of areas the sums from below, the tallest first so that the others cover it;
  // of lines what is behind them, or the least and the largest values, and then the lines.
  laid() {
    const positive = this.log ? (values) => values.map((value) => (value > 0 ? value : null)) : (values) => values;
    if (this.drawn.some((line) => line.area)) {
      const sums = [];
      for (const line of this.drawn) sums.unshift(line.values.map((value, at) => (value === null ? null : value + (sums[0]?.[at] || 0))));
      const series = [...this.drawn].reverse().map((line) => ({ width: 0, fill: line.colour, points: { show: false } }));
      return { series: [{}, ...series], data: [this.xs, ...sums], bands: [] };
    }
    const found = [], bands = [];
    const add = (values, look) => found.push([{ points: { show: false }, spanGaps: true, ...look }, positive(values)]);
    const bounded = this.drawn.length <= MANY ? this.drawn.filter((line) => line.highs) : [];
    for (const line of bounded) {
      add(line.highs, { stroke: `${line.colour}40`, width: 1 });
      add(line.lows, { stroke: `${line.colour}40`, width: 1 });
      bands.push({ series: [found.length - 1, found.length], fill: `${line.colour}30` });
    }
    for (const line of this.drawn) if (line.behind) add(line.behind, { stroke: `${line.colour}50`, width: 1 });
    const few = this.xs.length < 2;
    for (const line of this.drawn) {
      const show = few || Boolean(line.points && known(line.values).length <= MAX_POINTS);
      add(line.values, { stroke: line.colour, width: line.width || (this.drawn.length > MANY ? 1 : 1.5), dash: line.dash,
        points: { show, size: 6, fill: line.colour, stroke: line.colour } });
    }
    return { series: [{}, ...found.map(([look]) => look)], data: [this.xs, ...found.map(([, values]) => values)], bands };
  }

  create(series, data, bands, shape) {
    this.destroy();
    fill(this.canvas);
    this.shape = shape;
    const axis = { stroke: colour("soft"), font: FONT, ticks: { show: false }, gap: 6,
      grid: { stroke: colour("line"), width: 1 } };
    const name = this.settings.x === "step" ? (this.stage === "sft" ? "supervised step" : "step") : X_AXES[this.settings.x];
    const incrs = { step: STEPS, time: SECONDS }[this.settings.x];
    this.uplot = new uPlot({
      ...this.size(),
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, sync: { key: this.stage }, drag: { x: true, y: false, setScale: false },
        points: { size: 6, show: this.drawn.length <= MANY }, bind: { dblclick: () => () => zoomTo(this.stage, null) } },
      scales: { x: { time: false, range: (_, min, max) => this.across(min, max) },
        y: this.log ? { distr: 3 } : { range: (_, min, max) => this.upwards(min, max) } },
      axes: [
        { ...axis, size: 24, label: name, labelSize: 15, labelGap: 0, labelFont: FONT, space: 60, grid: { show: false },
          ...(incrs ? { incrs } : {}), values: (_, splits) => splits.map((x) => this.place(x)) },
        { ...axis, size: (_, values) => 12 + 6.2 * Math.max(3, ...(values || []).map((value) => (value || "").length)),
          space: 28, values: (_, splits) => this.ticks(splits),
          ...(this.log ? { filter: powers, grid: { ...axis.grid, filter: powers } } : {}) },
      ],
      series,
      bands,
      hooks: { setCursor: [(u) => this.offScreen || this.say(u.cursor.idx)],
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

  // A place on the x axis, for people.
  place(x) {
    return this.settings.x === "time" ? duration(x) : this.settings.x === "tokens" ? number(x) : x.toLocaleString("en-US");
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
    if (this.log) return splits.map((value) => (value === null ? "" : power(value) || number(value)));
    const apart = shown.length > 1 ? Math.abs(shown[1] - shown[0]) : 1;
    const whole = (places) => Math.round(apart * 10 ** places) > 0 && Math.abs(apart * 10 ** places - Math.round(apart * 10 ** places)) < 1e-6;
    const places = [0, 1, 2, 3, 4].find(whole) ?? 5;
    const short = (value) => (Math.abs(value) >= 1e6 ? `${value / 1e6}M` : Math.abs(value) >= 1e4 ? `${value / 1e3}k` : value.toLocaleString("en-US"));
    return splits.map((value) => (value === null ? "" : places > 4 ? number(value) : places ? value.toFixed(places) : short(value)));
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

  // The legend's values: at the cursor, or the newest; of many lines, the one beside the cursor.
  say(at) {
    const hovers = at !== null && at !== undefined;
    this.unit.textContent = hovers ? `${this.settings.x === "step" ? "step " : ""}${this.place(this.xs[at])} · ${this.plot.unit}` : this.plot.unit;
    const valueOf = (line) => {
      let index = hovers ? at : this.xs.length - 1;
      while (index > 0 && line.values[index] === null) index -= 1;
      return line.values[index];
    };
    const many = this.lines.length > MAX_ITEMS;
    const beside = many && hovers ? this.nearest(valueOf) : null;
    fill(this.legend, many && !beside ? `${this.lines.length} lines` : (beside ? [beside] : this.lines).map((line) => this.item(line, valueOf(line))));
    if (hovers || many) return;
    const values = this.lines.map((line) => `${line.label} ${number(line.values.at(-1))}`).join(", ");
    this.canvas.setAttribute("aria-label", visible(`${this.plot.title}, ${this.plot.unit}: ${values}`));
  }

  nearest(valueOf) {
    const height = this.uplot.posToVal(this.uplot.cursor.top, "y");
    const far = (line) => Math.abs((valueOf(line) ?? Infinity) - height);
    return this.lines.reduce((best, line) => (far(line) < far(best) ? line : best));
  }

  item(line, value) {
    const swatch = line.colour ? el("i", { class: "swatch" }) : null;
    if (swatch) swatch.style.background = line.colour;
    const said = [swatch, `${line.label} `, el("b", { text: number(value) })];
    if (!this.several || !line.run || line.seeds) return el("span", {}, said);
    return el("button", { type: "button", title: `hide ${line.run.name}`, onclick: () => this.hide(line.run) }, said);
  }

  // The arrow keys move the cursor.
  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.uplot) return;
    event.preventDefault();
    const at = Math.min(this.xs.length - 1, Math.max(0, (this.uplot.cursor.idx ?? this.xs.length - 1 - by) + by));
    this.uplot.setCursor({ left: this.uplot.valToPos(this.xs[at], "x"), top: 10 });
  }

  get fileName() {
    return `${this.several ? `${this.runs.length}-runs` : this.runs[0].name}-${this.plot.title}`;
  }

  saveData() {
    const axis = { step: "step", time: "seconds", tokens: "tokens" }[this.settings.x];
    download(`${this.fileName}.csv`, new Blob([csv(axis, this.xs, this.lines)], { type: "text/csv" }));
  }

  savePicture() {
    png(this.plot.title, this.uplot.ctx.canvas, this.lines, (blob) => download(`${this.fileName}.png`, blob));
  }
}

// 1e-7 as a power of ten; what lies between powers has no label.
function power(value) {
  const exponent = Math.round(Math.log10(value));
  if (Math.abs(Math.log10(value) - exponent) > 1e-6) return "";
  return `10${String(exponent).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])}`;
}

// Powers of ten alone, where there are several.
function powers(_, splits) {
  const found = splits.map((value) => (value !== null && power(value) ? value : null));
  return known(found).length > 1 ? found : splits.map((value, at) => (at % 2 ? null : value));
}

function zoomTo(stage, chosen) {
  zoom[stage] = chosen;
  drawSoon([...shownPlots].filter((plot) => plot.stage === stage), false);
}

// Plots on the screen are drawn in the next frame, the others when there is nothing else to do.
function drawSoon(plots, whole) {
  if (!undrawn.size && plots.length) requestAnimationFrame(drawVisible);
  for (const plot of plots) undrawn.set(plot, whole || undrawn.get(plot) || false);
}

function drawOne(plot) {
  const whole = undrawn.get(plot);
  undrawn.delete(plot);
  if (!plot.element.hidden) plot.draw(whole);
}

function drawVisible() {
  for (const plot of [...undrawn.keys()]) {
    const { top, bottom } = plot.element.getBoundingClientRect();
    if (top < innerHeight && bottom > 0) drawOne(plot);
  }
  if (undrawn.size) requestIdleCallback(drawRest, { timeout: 200 });
}

function drawRest(idle) {
  do drawOne(undrawn.keys().next().value); while (undrawn.size && idle.timeRemaining() > 5);
  if (undrawn.size) requestAnimationFrame(drawVisible);
}
