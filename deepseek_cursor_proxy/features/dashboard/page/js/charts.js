// Charts in SVG: stacked columns and lines over the same kind of x axis, and sparklines.
//
// A chart is one image for screen readers, named by its figures. The pointer or the arrow keys choose a column, whose
// figures stand in the legend: nothing covers the chart. It is drawn again when its width changes.

import { h, s, setText } from "./dom.js";

const HEIGHT = 190;
const LEFT = 56;
const TOP = 8;
const BOTTOM = 24;
const MOST_X_LABELS = 8;

// data: {labels, names, series: [{name, tone, values}], whole}. `labels` stand below the axis, `names` beside the
// title; a value may be null; `whole` has the figure of each series for the whole range.
export class Chart {
  constructor({ title, kind, format, axis = format, most = null, isWhole = false }) {
    Object.assign(this, { title, kind, format, axis, most, isWhole, data: null, chosen: null, width: 0 });
    this.svg = s("svg.chart", { height: HEIGHT, role: "img", tabindex: "0" });
    this.legend = h("div.legend");
    this.place = h("span.place");
    const head = h("div.panel-head", h("h2", title), this.place);
    this.element = h("section.panel", { "aria-label": title }, head, h("div.panel-body", this.svg, this.legend));
    this.svg.addEventListener("pointermove", (event) => this.choose(this.columnAt(event.offsetX)));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(([entry]) => this.resize(entry.contentRect.width)).observe(this.svg);
  }

  resize(width) {
    if (Math.abs(width - this.width) < 1) return;
    this.width = width;
    this.draw();
  }

  update(data) {
    this.data = data;
    this.chosen = null;
    this.legend.replaceChildren(...this.legendItems());
    this.showFigures();
    const words = data.series.map(({ name }, index) => `${name} ${this.format(data.whole[index])}`);
    this.svg.setAttribute("aria-label", `${this.title}: ${words.join(", ")}`);
    this.draw();
  }

  columnAt(x) {
    if (!this.data) return null;
    const column = Math.floor((x - LEFT) / this.step());
    return column >= 0 && column < this.data.labels.length ? column : null;
  }

  press(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.data) return;
    event.preventDefault();
    const last = this.data.labels.length - 1;
    const from = this.chosen ?? (step < 0 ? last + 1 : -1);
    this.choose(Math.min(last, Math.max(0, from + step)));
  }

  choose(column) {
    if (column === this.chosen) return;
    this.chosen = column;
    this.cursor?.classList.toggle("is-on", column !== null);
    if (column !== null) this.cursor?.setAttribute("x", LEFT + column * this.step());
    this.showFigures();
  }

  legendItems() {
    this.figures = this.data.series.map(() => h("b"));
    return this.data.series.map(({ name, tone }, index) =>
      h("span.item", h("i", { class: `swatch tone-${tone}` }), h("span.cut", name), this.figures[index]),
    );
  }

  // The figures of the chosen column, else of the whole range.
  showFigures() {
    const { names, series, whole } = this.data;
    series.forEach(({ values }, index) => {
      const value = this.chosen === null ? whole[index] : values[this.chosen];
      setText(this.figures[index], this.format(value));
    });
    setText(this.place, this.chosen === null ? "" : names[this.chosen]);
  }

  step() {
    return (this.width - LEFT) / Math.max(1, this.data.labels.length);
  }

  center(column) {
    return LEFT + (column + 0.5) * this.step();
  }

  draw() {
    if (!this.data || this.width < 80) return;
    const { series, labels } = this.data;
    const sums = labels.map((_, column) => series.reduce((sum, { values }) => sum + (values[column] ?? 0), 0));
    const peak =
      this.kind === "columns" ? Math.max(0, ...sums) : Math.max(0, ...series.flatMap(({ values }) => values));
    const ticks = niceTicks(this.most ?? peak, this.isWhole);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / ticks.at(-1));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.cursor = s("rect.cursor", { y: TOP, width: this.step(), height: HEIGHT - TOP - BOTTOM });
    this.svg.replaceChildren(
      this.cursor,
      ...this.grid(ticks, y),
      ...this.xLabels(),
      ...(this.kind === "columns" ? this.columns(y) : this.lines(y)),
    );
  }

  grid(ticks, y) {
    const step = ticks[1];
    return ticks.flatMap((tick) => [
      s("line", { class: tick ? "grid-line" : "base-line", x1: LEFT, x2: this.width, y1: y(tick), y2: y(tick) }),
      s("text.axis", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, this.axis(tick, step)),
    ]);
  }

  xLabels() {
    const { labels } = this.data;
    const most = Math.max(2, Math.min(MOST_X_LABELS, Math.floor((this.width - LEFT) / 68)));
    const every = Math.ceil(labels.length / most);
    // Counted from the last: today is always named.
    return labels.flatMap((label, column) => {
      if ((labels.length - 1 - column) % every) return [];
      const isLast = column === labels.length - 1 && labels.length > most;
      const x = isLast ? this.width : this.center(column);
      return [s("text.axis", { x, y: HEIGHT - 6, "text-anchor": isLast ? "end" : "middle" }, label)];
    });
  }

  columns(y) {
    const width = Math.max(1, Math.min(28, this.step() * 0.72));
    return this.data.labels.flatMap((_, column) => {
      const x = this.center(column) - width / 2;
      let below = 0;
      return this.data.series.flatMap(({ values, tone }) => {
        const value = values[column] ?? 0;
        const top = y(below + value);
        const height = y(below) - top;
        below += value;
        // A gap between two parts of a column.
        const shown = Math.max(0.75, height - (height > 3 ? 1 : 0));
        return value > 0 ? [s("rect", { class: `tone-${tone}`, x, y: top, width, height: shown, rx: 1 })] : [];
      });
    });
  }

  lines(y) {
    return this.data.series.flatMap(({ values, tone }) => {
      const points = values.flatMap((value, column) => (value === null ? [] : [[this.center(column), y(value)]]));
      const dots = points.map(([cx, cy]) => s("circle", { class: `tone-${tone}`, cx, cy, r: 2.5 }));
      return [s("polyline", { class: `line tone-${tone}`, points: points.join(" ") }), ...dots];
    });
  }
}

// 0 and up to four round steps that reach the peak.
export function niceTicks(peak, isWhole = false) {
  if (!(peak > 0)) return [0, 1];
  const rough = peak / 4;
  const size = Math.max(isWhole ? 1 : 0, 10 ** Math.floor(Math.log10(rough)));
  const step = [1, 2, 2.5, 5, 10]
    .map((factor) => factor * size)
    .find((each) => each * 4 >= peak * 0.999 && (!isWhole || Number.isInteger(each)));
  return Array.from({ length: Math.ceil((peak * 0.999) / step) + 1 }, (_, index) => index * step);
}

// A line without axes, as decoration beside a figure that says it in words.
export class Sparkline {
  constructor(tone) {
    this.area = s("path", { class: `area tone-${tone}` });
    this.path = s("path", { class: `line tone-${tone}`, "vector-effect": "non-scaling-stroke" });
    this.element = s(
      "svg.sparkline",
      { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
      this.area,
      this.path,
    );
  }

  update(values) {
    const peak = Math.max(0, ...values);
    this.element.classList.toggle("is-flat", peak === 0);
    if (peak === 0) return;
    const x = (index) => ((100 * index) / (values.length - 1)).toFixed(2);
    const points = values.map((value, index) => `${x(index)} ${(23 - (21 * value) / peak).toFixed(2)}`);
    const line = `M${points.join("L")}`;
    if (line === this.drawn) return;
    this.drawn = line;
    this.path.setAttribute("d", line);
    this.area.setAttribute("d", `${line}L100 24L0 24Z`);
  }
}
