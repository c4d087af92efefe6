"use strict";
// What is plotted: each plot's title, unit and series by the names of the metrics. A name with "*" stands for all
// metrics that begin and end so, but those with `without` in their names. `main` is what several runs are compared by,
// where it is not the first series; `each` is drawn only where the others are no smoother. `large` is as large as four;
// "alone": while there are none of reinforcement learning.

const seriesOf = (label, name, look = "accent", more = {}) => ({ label, name, look, ...more });
const HELD_OUT = { points: true };
const WHOLE = "seconds/step";

const PLOTS = [
  { title: "Reward", unit: "mean", large: true, series: [
    seriesOf("training, each step", "rollout/reward_mean", "pale", { each: true }),
    seriesOf("training, running mean", "rollout/reward_mean", "accent", { smooth: 5, width: 2 }),
    seriesOf("held-out", "eval/reward_mean", "ink", HELD_OUT) ], main: [1, 2] },
  { title: "Response length", unit: "tokens", floor: 0, series: [
    seriesOf("mean", "rollout/response_length_mean"),
    seriesOf("longest", "rollout/response_length_max", "faint"),
    seriesOf("held-out, mean", "eval/response_length_mean", "ink", HELD_OUT) ] },
  { title: "Truncated responses", unit: "share", floor: 0, least: 0.1, series: [
    seriesOf("training", "rollout/truncated_share"),
    seriesOf("held-out", "eval/truncated_share", "ink", HELD_OUT) ] },
  { title: "Groups without signal", unit: "share", floor: 0, least: 0.1, series: [
    seriesOf("groups of equal rewards", "rollout/zero_variance_share"),
    seriesOf("their tokens", "rollout/zero_variance_token_share", "faint") ] },
  { title: "Parts of the reward", unit: "mean", series: [seriesOf("*", "rollout/reward_part/*"), seriesOf("*", "reward/*")] },
  { title: "Seconds of a step", unit: "seconds", floor: 0, stack: true, series: [seriesOf("*", "seconds/*")],
    without: WHOLE, total: WHOLE },
  { title: "Engines", unit: "seconds with requests", floor: 0, series: [
    seriesOf("slowest", "engines/seconds_max"), seriesOf("mean", "engines/seconds_mean", "faint"),
    seriesOf("the slowest is engine", "engines/slowest", null) ] },
  { title: "Log-prob gap, engine to trainer", unit: "nats a token", log: true, series: [
    seriesOf("mean", "train/logprob_diff_mean"), seriesOf("largest", "train/logprob_diff_max", "faint"),
    seriesOf("alarm", "", "bad", { constant: "alarm", dash: [5, 4] }) ] },
  { title: "Failures by cause", unit: "a step", floor: 0, least: 1, stack: true, optional: true, series: [
    seriesOf("invalid response", "rollout/reward_invalid"), seriesOf("reward timeout", "rollout/reward_timeout"),
    seriesOf("reward error", "rollout/reward_error"), seriesOf("group dropped: *", "filter/drop/*"),
    seriesOf("not buffered: *", "buffer/drop/*"), seriesOf("surplus dropped", "rollout/dropped_groups") ] },
  { title: "Throughput", unit: "tokens a second", floor: 0, series: [seriesOf("all devices", "tokens_per_s")] },
  { title: "Memory of the fullest device", unit: "GiB", floor: 0, without: "_host_", series: [seriesOf("*", "memory/*_gib")] },
  { title: "Memory of the fullest host", unit: "GiB", floor: 0, without: "_planned_", series: [seriesOf("*", "memory/*_host_gib")] },
  { title: "KL from the reference", unit: "nats a token", series: [seriesOf("KL", "train/kl")] },
  { title: "Entropy", unit: "nats a token", floor: 0, series: [seriesOf("entropy", "train/entropy")] },
  { title: "Gradient norm", unit: "before clipping", floor: 0, series: [seriesOf("norm", "train/grad_norm")] },
  { title: "Learning rate", unit: "of each step", series: [seriesOf("learning rate", "train/lr")] },
  { title: "Tokens seen", unit: "tokens", floor: 0, series: [seriesOf("trained on", "seen/tokens")] },
  { title: "Clipped tokens", unit: "share", floor: 0, least: 0.01, series: [seriesOf("clipped", "train/clip_fraction")] },
  { title: "Age of the trained tokens", unit: "weight versions", floor: 0, least: 1, optional: true, series: [
    seriesOf("mean", "rollout/weight_lag_mean"), seriesOf("oldest", "rollout/weight_lag_max", "faint") ] },
  { title: "Supervised loss", unit: "nats a token", stage: "sft", large: "alone", series: [
    seriesOf("loss", "train/loss"), seriesOf("held-out", "eval/loss", "ink", HELD_OUT) ], main: [0, 1] },
  { title: "Supervised throughput", unit: "tokens a second", stage: "sft", floor: 0, series: [seriesOf("all devices", "tokens_per_s")] },
  { title: "Supervised steps", unit: "seconds", stage: "sft", floor: 0, series: [seriesOf("a step", WHOLE)] },
  { title: "Supervised gradient norm", unit: "before clipping", stage: "sft", floor: 0, series: [seriesOf("norm", "train/grad_norm")] },
  { title: "Supervised learning rate", unit: "of each step", stage: "sft", series: [seriesOf("learning rate", "train/lr")] },
];

const NO_CURVES = { steps: [], columns: table([]) };

// The series of a plot that a table of curves has values for, with "*" filled in.
function present(plot, columns) {
  const found = [];
  for (const series of plot.series) {
    if (series.constant) found.push(series);
    if (!series.name.includes("*")) { if (columns[series.name]) found.push(series); continue; }
    const [before, after] = series.name.split("*");
    for (const name of Object.keys(columns)) {
      if (!name.startsWith(before) || !name.endsWith(after) || (plot.without && name.includes(plot.without))) continue;
      const rest = name.slice(before.length, name.length - after.length).replaceAll("_", " ");
      found.push({ ...series, name, label: series.label.replace("*", rest) });
    }
  }
  return found;
}

// Names of the metrics that several runs are compared by.
function comparedNames() {
  const main = ({ main: chosen, series, stack, total }) => (stack && total ? [total] : stack ? series.map((each) => each.name)
    : (chosen || series.map((_, at) => at)).map((at) => series[at].name));
  return [...new Set(["seen/*", ...PLOTS.flatMap(main)])].filter(Boolean);
}
