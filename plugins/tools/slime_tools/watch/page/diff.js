"use strict";
// The difference between two texts, word by word: what both have in the same order, and what only one has.

const MAX_WORDS = 1500;  // of each text

// Pairs of "same", "old" or "new" and a text; null where the texts are too long for it.
function difference(before, after) {
  const [a, b] = [before, after].map((text) => text.match(/\s+|\w+|[^\s\w]/gu) || []);
  if (a.length > MAX_WORDS || b.length > MAX_WORDS) return null;
  // shared[i][j]: how many words a from i on and b from j on have in common, in order
  const shared = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      shared[i][j] = a[i] === b[j] ? shared[i + 1][j + 1] + 1 : Math.max(shared[i + 1][j], shared[i][j + 1]);
    }
  }
  const parts = [];
  const say = (kind, word) => (parts.at(-1)?.[0] === kind ? (parts.at(-1)[1] += word) : parts.push([kind, word]));
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) say("same", a[i++]), (j += 1);
    else if (j === b.length || (i < a.length && shared[i + 1][j] >= shared[i][j + 1])) say("old", a[i++]);
    else say("new", b[j++]);
  }
  return parts;
}

function shownDifference(before, after) {
  const parts = difference(before, after);
  if (!parts) return el("p", { class: "note", text: "The two are too long to compare." });
  const TAGS = { same: "span", old: "del", new: "ins" };
  return el("pre", { class: "text", dir: "auto" }, parts.map(([kind, text]) => el(TAGS[kind], { text })));
}
