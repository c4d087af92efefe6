"use strict";
// The lines of a plot: what the runs have of it, by the reader's choice of axis, smoothing and grouping. A line has `xs`
// and, for each of them, `values` as drawn and `raw` as measured; and where a point stands for several steps, or a line
// for several runs, `lows` and `highs`. Null is a gap.

const LINES = [["accent"], ["ink"], ["faint"], ["accent", [5, 3]], ["ink", [5, 3]], ["faint", [5, 3]]];
const MAX_AREAS = 7;  // as many as the ramp has colours; what is smaller is added up
const MANY = 12;  // lines: more are drawn alone, without what is behind them
const MAX_XS = 2000;  // of the lines of a plot together; more are put into bins
const NUM_BINS = 500;
const PARTS = ["values", "raw", "behind", "lows", "highs"];

const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);
const mean = (values) => (values.length ? sum(values) / values.length : null);
const known = (values) => values.filter((value) => value !== null && value !== undefined);
const least = (values) => (values.length ? values.reduce((a, b) => Math.min(a, b)) : null);
const largest = (values) => (values.length ? values.reduce((a, b) => Math.max(a, b)) : null);

function linesOf(plot, stage, runs, several, settings) {
  const drawn = (found) => found.filter((line) => known(line.values).length);
  const limits = several ? drawn(single(plot, stage, runs[0], settings).filter((line) => line.constant)) : [];
  let lines = drawn(several ? runs.flatMap((run) => compared(plot, stage, run, settings)) : single(plot, stage, runs[0], settings));
  if (lines.length > MANY) for (const line of lines) line.behind = null;
  const put = several && settings.seeds;
  if (put) lines = together(lines, (line) => settings.x !== "step" || !line.points);
  else if (plot.stack && !several) lines = areas(lines);
  return aligned([...limits, ...lines]);
}

function xsOf({ steps, columns }, axis) {
  if (axis === "step") return steps;
  const seen = columns[axis === "time" ? "seen/seconds" : "seen/tokens"];
  return steps.map((_, at) => (seen && seen[at] !== null ? seen[at] : seen && at === 0 ? 0 : null));
}

// A series of a run, smoothed as the reader chose, else as the plot has it.
function lineOf(plot, curves, series, settings, look) {
  const raw = curves.columns[series.name], { steps } = curves;
  const fades = settings.smooth > 0 && !series.points && !plot.stack;
  const values = fades ? faded(steps, raw, settings.smooth) : series.smooth ? running(raw, series.smooth) : raw;
  const bounds = curves.highs ? { lows: curves.lows[series.name], highs: curves.highs[series.name] } : {};
  return { ...series, ...look, xs: xsOf(curves, settings.x), values, raw, behind: fades && !bounds.highs ? raw : null,
    ...(plot.stack ? {} : bounds) };
}

function single(plot, stage, run, settings) {
  const curves = run.curves[stage] || NO_CURVES;
  const found = present(plot, curves.columns);
  const starred = plot.series.some((each) => each.name.includes("*"));
  return found.filter((series) => !(series.each && settings.smooth > 0)).map((series) => {
    if (series.constant) {
      const values = curves.steps.map(() => run.head[series.constant] || null);
      return { ...series, xs: xsOf(curves, settings.x), values, raw: values, colour: colour(series.look) };
    }
    const [look, dash] = starred ? lookOf(found, series) : [series.look, series.dash];
    return lineOf(plot, curves, series, settings, { colour: look && colour(look === "pale" ? "ramp-2" : look), dash });
  });
}

// One of several runs, in its colour: the plot's main series, or the sum of the stacked ones.
function compared(plot, stage, run, settings) {
  const curves = run.curves[stage] || NO_CURVES, { steps, columns } = curves;
  const named = { run, colour: colour(`run-${run.slot % 6}`), label: run.name };
  const found = present(plot, columns).filter((series) => !series.constant);
  if (plot.stack) {
    const parts = found.map((series) => columns[series.name]);
    const values = columns[plot.total] || steps.map((_, at) => (parts.length ? sum(parts.map((part) => part[at])) : null));
    return [{ ...named, name: plot.title, xs: xsOf(curves, settings.x), values, raw: values }];
  }
  const chosen = (plot.main ? plot.main.map((at) => plot.series[at]) : found.slice(0, 1)).filter((series) => columns[series.name]);
  return chosen.map((series) => {
    const label = plot.main ? `${run.name}, ${series.points ? "held-out" : "training"}` : run.name;
    return lineOf(plot, curves, series, settings, { ...named, label, dash: series.points ? [4, 3] : undefined, width: undefined });
  });
}

// Mean over a value and those before it, whose weight falls by `weight` a step; the first values weigh no more for it.
function faded(steps, values, weight) {
  let total = 0, count = 0, before = 0;
  return values.map((value, at) => {
    if (value === null) return null;
    const kept = weight ** (steps[at] - before);
    [total, count, before] = [total * kept + value, count * kept + 1, steps[at]];
    return total / count;
  });
}

// Mean over each value and up to count - 1 before it; gaps stay.
function running(values, count) {
  return values.map((value, at) => (value === null ? null : mean(known(values.slice(Math.max(0, at - count + 1), at + 1)))));
}

// Colour and dashes of one of many; what was planned has the colour of what was seen, and is dashed.
function lookOf(found, { name }) {
  const seen = (each) => each.replace("_planned_", "_");
  const names = [...new Set(found.map((series) => seen(series.name)))];
  const [look, dash] = LINES[names.indexOf(seen(name)) % LINES.length];
  return [look, name === seen(name) ? dash : [2, 3]];
}

// The largest areas below, each in a shade of the accent; what is too small for a shade is added up.
function areas(lines) {
  const ranked = lines.filter((line) => sum(line.values)).sort((a, b) => sum(b.values) - sum(a.values));
  const shown = ranked.length > MAX_AREAS ? ranked.slice(0, MAX_AREAS - 1) : ranked;
  if (shown.length < ranked.length) {
    const rest = ranked.slice(shown.length), { xs } = rest[0];
    const values = xs.map((_, at) => (rest.some((line) => line.values[at] !== null) ? sum(rest.map((line) => line.values[at])) : null));
    shown.push({ label: "all else", xs, values, raw: values });
  }
  return shown.map((line, index) => ({ ...line, area: true, colour: colour(`ramp-${index}`) }));
}

// Gaps between two values lie on the straight line between them.
function filled(line) {
  const fill = (values) => {
    const made = [...values];
    let before = -1;
    values.forEach((value, at) => {
      if (value === null) return;
      const share = (place) => (line.xs[place] - line.xs[before]) / (line.xs[at] - line.xs[before] || 1);
      for (let place = before + 1; before >= 0 && place < at; place += 1) {
        made[place] = values[before] + (value - values[before]) * share(place);
      }
      before = at;
    });
    return made;
  };
  return { ...line, values: fill(line.values), raw: fill(line.raw) };
}

// Runs that differ in their seeds alone as one line, their mean, between the least and the largest of them; only where
// half of them have a value. `fills`: whether a line has one between its points.
function together(lines, fills) {
  const groups = new Map();
  for (const line of lines) {
    const key = JSON.stringify([line.run.group || line.run.name, line.name]);
    groups.set(key, [...(groups.get(key) || []), line]);
  }
  const names = [...new Set(lines.map((line) => line.run.group || line.run.name))];
  return [...groups.values()].map((members) => {
    const [first] = members, colour_ = colour(`run-${names.indexOf(first.run.group || first.run.name) % 6}`);
    if (members.length < 2) return { ...first, colour: colour_ };
    const laid = aligned(members);
    const filledIn = laid.lines.map((line) => (fills(line) ? filled(line) : line));
    const at = (part, of) => laid.xs.map((_, place) => {
      const found = known(filledIn.map((line) => line[part][place]));
      return 2 * found.length < members.length ? null : of(found);
    });
    const label = `${common(members.map((line) => line.run.name))}, ${members.length} seeds${first.points ? ", held-out" : ""}`;
    return { ...first, colour: colour_, label, seeds: members.length, xs: laid.xs, behind: null,
      values: at("values", mean), raw: at("raw", mean), lows: at("values", least), highs: at("values", largest) };
  });
}

// What names begin with, without a seed's name at its end.
function common(names) {
  let end = 0;
  while (end < names[0].length && names.every((name) => name[end] === names[0][end])) end += 1;
  return names[0].slice(0, end).replace(/[-_. /]*(seed)?[-_. =]*$/i, "") || names[0];
}

// All lines on the same xs: all that there are, or, of very many, bins with the mean, the least and the largest value in
// them.
function aligned(lines) {
  const all = [...new Set(known(lines.flatMap((line) => line.xs)))].sort((a, b) => a - b);
  const binned = all.length > MAX_XS;
  const width = binned ? (all.at(-1) - all[0]) / (NUM_BINS - 1) : 0;
  const xs = binned ? Array.from({ length: NUM_BINS }, (_, at) => all[0] + at * width) : all;
  const places = binned ? null : new Map(all.map((x, at) => [x, at]));
  const placeOf = (x) => (binned ? Math.round((x - all[0]) / width) : places.get(x));
  const lay = (line, values, of) => {
    const bins = new Array(xs.length).fill(null);
    line.xs.forEach((x, at) => {
      const value = x === null ? null : values[at];
      if (value !== null && value !== undefined) (bins[placeOf(x)] ||= []).push(value);
    });
    return bins.map((bin) => (bin ? of(bin) : null));
  };
  const OF = { values: mean, raw: mean, behind: mean, lows: least, highs: largest };
  const laid = lines.map((line) => {
    const made = { ...line, xs };
    for (const part of PARTS) if (line[part]) made[part] = lay(line, line[part], OF[part]);
    if (binned && !line.lows) Object.assign(made, { behind: null, lows: lay(line, line.raw, least), highs: lay(line, line.raw, largest) });
    return made;
  });
  return { xs, lines: laid };
}
