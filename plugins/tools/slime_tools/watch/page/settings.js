"use strict";
// What the reader chose for all plots. The fragment of the address keeps it, behind the key: a link to a plot shows it the
// same way.

const DEFAULTS = { smooth: 0, log: false, x: "step", seeds: false, plot: "", runs: "" };
const X_AXES = { step: "step", time: "time in steps", tokens: "tokens seen" };

class Settings {
  constructor() {
    const parts = location.hash.slice(1).split("&");
    const given = new URLSearchParams(parts.filter((part) => part.includes("=")).join("&"));
    this.key = parts.find((part) => part && !part.includes("=")) || "";
    this.listeners = [];
    Object.assign(this, DEFAULTS, { plot: given.get("plot") || "", runs: given.get("runs") || "" });
    this.smooth = Math.min(0.99, Math.max(0, Number(given.get("smooth")) || 0));
    if (given.get("x") in X_AXES) this.x = given.get("x");
    for (const name of ["log", "seeds"]) this[name] = given.get(name) === "true";
  }

  // The fragment with these settings, and others in their place.
  fragment(others) {
    const shown = { ...this, ...others };
    const chosen = Object.keys(DEFAULTS).filter((name) => shown[name] !== DEFAULTS[name]);
    const query = new URLSearchParams(chosen.map((name) => [name, shown[name]])).toString();
    return `#${[this.key, query].filter(Boolean).join("&")}`;
  }

  set(changes) {
    Object.assign(this, changes);
    history.replaceState(null, "", this.fragment());
    for (const listener of this.listeners) listener(changes);
  }

  // What changes them; `several`: whether there are seeds to put together.
  controls() {
    const said = el("output", { text: this.smooth || "none" });
    const slider = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: this.smooth, oninput: () => {
      said.textContent = Number(slider.value) || "none";
      this.set({ smooth: Number(slider.value) });
    } });
    const tick = (name, text) => {
      const box = el("input", { type: "checkbox", checked: this[name] && "", onchange: () => this.set({ [name]: box.checked }) });
      return el("label", {}, box, text);
    };
    const axis = el("select", { onchange: () => this.set({ x: axis.value }) },
      Object.entries(X_AXES).map(([value, text]) => el("option", { value, text, selected: value === this.x && "" })));
    this.grouping = tick("seeds", "seeds together");
    return el("div", { class: "controls", role: "group", "aria-label": "plots" }, el("label", {}, "smoothing", slider, said),
      el("label", {}, "x axis", axis), tick("log", "log y axis"), this.grouping);
  }
}
