"use strict";
// What a plot shows as a file: its data as CSV, or itself as PNG.

function download(name, blob) {
  const link = el("a", { download: name.replace(/[^\w.-]+/g, "-") });
  link.href = URL.createObjectURL(blob);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

const quoted = (text) => `"${visible(text).replaceAll('"', '""')}"`;

// As measured, not as smoothed.
function csv(axis, xs, lines) {
  const columns = lines.flatMap((line) => [[line.label, line.raw],
    ...(line.highs ? [[`${line.label}, least`, line.lows], [`${line.label}, largest`, line.highs]] : [])]);
  const rows = xs.map((x, at) => [x, ...columns.map(([, values]) => values[at] ?? "")].join(","));
  return [[axis, ...columns.map(([name]) => name)].map(quoted).join(","), ...rows, ""].join("\n");
}

function png(title, drawn, lines, done) {
  const scale = devicePixelRatio, row = 22 * scale, canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [drawn.width, drawn.height + 2 * row];
  const context = canvas.getContext("2d");
  context.fillStyle = colour("card");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = colour("ink");
  context.font = `600 ${14 * scale}px system-ui, sans-serif`;
  context.fillText(visible(title), 10 * scale, row * 0.75);
  context.font = `${11 * scale}px system-ui, sans-serif`;
  let left = 10 * scale;
  for (const line of lines.filter((each) => each.colour)) {
    const text = visible(line.label);
    context.fillStyle = line.colour;
    context.fillRect(left, row * 1.4, 12 * scale, 3 * scale);
    context.fillStyle = colour("soft");
    context.fillText(text, left + 17 * scale, row * 1.6);
    left += 32 * scale + context.measureText(text).width;
  }
  context.drawImage(drawn, 0, 2 * row);
  canvas.toBlob(done);
}
