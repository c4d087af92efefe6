"use strict";
// Elements and texts. Whatever a run says becomes a text node: nothing here parses HTML. What steers a text, such as a
// mark that turns its direction, is shown by its name, as on a terminal.

// A table whose keys come from a run: an object would have keys of its own, "constructor" and "__proto__" among them.
function table(entries) {
  const made = Object.create(null);
  for (const [name, value] of entries) made[name] = value;
  return made;
}

const STEERING = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;  // as slime.printable
function visible(text) {
  return String(text).replace(STEERING, (each) => {
    if (each === "\n" || each === "\t") return each;
    const code = each.codePointAt(0).toString(16);
    return code.length < 3 ? `\\x${code.padStart(2, "0")}` : `<U+${code.toUpperCase().padStart(4, "0")}>`;
  });
}

const node = (child) => (typeof child === "string" ? visible(child) : child);
const nodes = (children) => children.flat().filter((child) => child !== null && child !== undefined).map(node);

function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "text") element.textContent = visible(value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, name === "value" ? value : visible(value));
    }
  }
  element.append(...nodes(children));
  return element;
}

function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
}

// A colour of the style sheet by its name.
const colours = new Map();
function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(name);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.clear());

// As `fill`, and what had the focus by its `data-name` has it again.
function refill(element, ...children) {
  const name = element.contains(document.activeElement) ? document.activeElement.dataset.name : undefined;
  fill(element, ...children);
  if (name !== undefined) element.querySelector(`[data-name="${CSS.escape(name)}"]`)?.focus();
}

// A number in at most five places: 0.9648, 1,234, 1.2e-7.
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace("e-", "e−");
  if (size >= 1e6) return `${(value / 1e6).toFixed(size >= 1e8 ? 0 : 1)} M`;
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (Number.isInteger(value)) return String(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(3);
}

// Seconds for people: 0:42, 12:05, 3:20 h, 2 d 4 h.
function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  const two = (value) => String(value).padStart(2, "0");
  if (days) return `${days} d ${hours % 24} h`;
  return hours ? `${hours}:${two(minutes % 60)} h` : `${minutes}:${two(whole % 60)}`;
}

function ago(seconds) {
  if (seconds < 2) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 130000 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

const date = (seconds) => (seconds ? `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC` : "–");
