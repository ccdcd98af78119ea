// The parts that views are made of: buttons, panels, tables, lists of facts, meters, tiles. Their looks are in
// parts.css.

import { Sparkline } from "./charts.js";
import { announce, h, s, setText } from "./dom.js";

export function icon(name) {
  return s("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, s("use", { href: `#i-${name}` }));
}

export function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", class: "button", onclick, ...attributes }, label);
}

export function iconButton(name, label, onclick) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick }, icon(name));
}

export function searchField(label, oninput) {
  return h("input", { type: "search", placeholder: label, "aria-label": label, oninput });
}

// Text to copy, with the button that does it.
export function copyable(text) {
  const copy = iconButton("copy", `Copy ${text}`, async () => {
    await navigator.clipboard.writeText(text);
    announce("Copied");
    copy.classList.add("is-done");
    setTimeout(() => copy.classList.remove("is-done"), 1500);
  });
  return h("span.copyable", h("code", text), copy);
}

// A click anywhere on a row is a click on its link.
export function openRowsOnClick(body) {
  body.addEventListener("click", (event) => {
    const link = event.target.closest("tr")?.querySelector("a");
    if (link && !event.target.closest("a, button") && !getSelection().toString()) link.click();
  });
}

export function panel(title, attributes, ...children) {
  const { aside = null, ...others } = attributes;
  const head = h("div.panel-head", h("h2", title), aside);
  return h("section", { "aria-label": title, ...others, class: `panel ${others.class ?? ""}` }, head, ...children);
}

// columns: [name, classes]; every column but one has a width, so that no new row moves a column.
export function table(label, columns, ...bodies) {
  const names = columns.map(([name, style]) => h("th", { scope: "col", class: style }, name));
  return h("table.table", { "aria-label": label }, h("thead", h("tr", names)), ...bodies);
}

export function factList(facts) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl.facts", known.map(([name, value]) => [h("dt", name), h("dd", ...[value].flat())]).flat());
}

// A section of a detail.
export function section(title, ...children) {
  return h("section.part", { "aria-label": title }, h("h3", title), ...children);
}

// items: [{style, name, figure}]; what it says is also the name of the image above it.
export function barLegend(items) {
  const lines = items.map(({ style, name, figure }) =>
    h("li", h("i", { class: style }), h("span", name), h("b", figure)),
  );
  return h("ul.bar-legend", { "aria-hidden": "true" }, lines);
}

// One bar of parts that add up: tokens by kind, time by phase. parts: [name, value, tone]; those without a value are
// left out.
export function stackedBar(title, write, parts) {
  const shown = parts.filter(([, value]) => value > 0);
  const total = shown.reduce((sum, [, value]) => sum + value, 0);
  const words = shown.map(([name, value]) => `${name} ${write(value)}`);
  const pieces = shown.map(([, value, tone], index) => {
    const piece = h("i", { class: `tone-${tone}`, title: words[index] });
    piece.style.flexGrow = value / total;
    return piece;
  });
  const items = shown.map(([name, value, tone]) => ({ style: `swatch tone-${tone}`, name, figure: write(value) }));
  const label = `${title}: ${words.join(", ")}`;
  return h("div", h("div.stacked", { role: "img", "aria-label": label }, pieces), barLegend(items));
}

export function meter(style, tone) {
  const bar = h("i", { class: `tone-${tone}` });
  const set = (share) => (bar.style.width = `${100 * Math.min(1, Math.max(0, share || 0))}%`);
  return { element: h("span", { class: `meter ${style}`, "aria-hidden": "true" }, bar), set };
}

// A figure with its unit, a line below, and a sparkline or a meter at its foot.
export class Tile {
  constructor(title, tone) {
    this.tone = tone;
    this.figure = h("span");
    this.unit = h("small");
    this.note = h("p.note");
    this.foot = h("div.foot");
    const figure = h("p.figure", this.figure, " ", this.unit);
    this.element = h("section.panel.tile", { "aria-label": title }, h("h2", title), figure, this.note, this.foot);
  }

  set(figure, note, unit = "") {
    setText(this.figure, figure);
    setText(this.unit, unit);
    setText(this.note, note);
  }

  setShare(share) {
    if (!this.meter) this.foot.append((this.meter = meter("wide", this.tone)).element);
    this.meter.set(share);
  }

  draw(values) {
    if (!this.line) this.foot.append((this.line = new Sparkline(this.tone)).element);
    this.line.update(values);
  }
}

// Buttons of which one is pressed; words: {value: word}.
export function segments(label, words, choose) {
  const buttons = Object.entries(words).map(([value, word]) =>
    h("button", { type: "button", value, onclick: () => choose(value) }, word),
  );
  const press = (value) => buttons.forEach((each) => each.setAttribute("aria-pressed", String(each.value === value)));
  return { element: h("div.segments", { role: "group", "aria-label": label }, buttons), press };
}
