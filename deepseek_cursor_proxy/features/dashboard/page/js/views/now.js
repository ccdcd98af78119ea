// The view Now: what runs at this moment, the last hour in figures, the newest requests.
// The tables stand still while the pointer is over them, but for their figures.

import { Chart } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { newestFirst } from "../model.js";
import { copyable, factList, panel, Tile } from "../parts.js";
import { firstSteps } from "../states.js";
import { chip, UPSTREAM_STATES } from "../words.js";
import { RequestTable } from "./request_table.js";

const NEWEST = 8;
const RUNNING_FIELDS = ["number", "client", "model", "state", "first", "output", "total"];
const NEWEST_FIELDS = ["number", "time", "client", "model", "state", "input", "total", "cost"];
// More clients than there are tones are one series.
const MOST_CLIENTS = 5;

export class NowView {
  constructor(model) {
    this.model = model;
    this.marks = {};
    this.running = new Tile("In flight", 0);
    this.first = new Tile("First token");
    this.speed = new Tile("Output speed", 1);
    this.cached = new Tile("Cache hits", 1);
    this.cost = new Tile("Spent today", 2);
    const href = (id) => `#/requests/${id}`;
    this.streams = new RequestTable("Requests in flight", RUNNING_FIELDS, href);
    this.newest = new RequestTable("Newest requests", NEWEST_FIELDS, href);
    this.idle = h("p.panel-body.quiet", "Nothing is running. The next request appears here as soon as it arrives.");
    this.steps = h("div.panel", { hidden: true });
    const title = "Last hour, requests per minute";
    this.hour = new Chart({ title, kind: "columns", format: format.count, isWhole: true });
    this.upstreams = h("ul.upstreams");
    this.addresses = h("div.panel-body");
    this.body = h("div", { hidden: true }, this.layout());
    this.element = h("div", h("h1.unseen", "Now"), this.steps, this.body);
  }

  layout() {
    const tiles = [this.running, this.first, this.speed, this.cached, this.cost];
    const all = h("a", { href: "#/requests" }, "All requests");
    this.streamPanel = panel(
      "Requests in flight",
      { class: "streams" },
      h("div.scroll", this.streams.element),
      this.idle,
    );
    this.newestPanel = panel("Newest requests", { aside: all, class: "list-pane" }, this.newest.element);
    const upstreams = panel("Upstream", {}, h("div.panel-body", this.upstreams));
    const right = h("div.grid", this.hour.element, upstreams, panel("Addresses", {}, this.addresses));
    return [
      h(
        "div.tiles",
        tiles.map((tile) => tile.element),
      ),
      h("div.grid.now-grid", h("div.grid", this.streamPanel, this.newestPanel), right),
    ];
  }

  show() {}

  update() {
    const { stats } = this.model;
    this.fillSteps(stats);
    if (this.body.hidden) return;
    this.fillTiles(stats);
    this.fillStreams();
    this.fillHour(stats.last_minutes);
    this.fillNewest();
    this.fillUpstreams(stats.upstreams);
    this.fillAddresses(stats);
  }

  // Whether a value is another than the last time: what is the same is not drawn again.
  isChanged(name, value) {
    const mark = JSON.stringify(value);
    const isChanged = this.marks[name] !== mark;
    this.marks[name] = mark;
    return isChanged;
  }

  tick() {
    this.streams.tick(this.model.now());
  }

  fillTiles({
    today,
    waiting,
    connections,
    first_token_seconds: first,
    tokens_per_second: speed,
    cache_hit_share: cached,
    last_minutes: minutes,
  }) {
    const queued = Object.values(waiting).reduce((sum, each) => sum + each, 0);
    this.running.set(
      format.count(this.model.running.size),
      `${format.count(queued)} queued · ${format.plural(connections, "connection")}`,
    );
    this.running.draw(minutes.map((minute) => minute.busy_seconds));
    this.first.set(
      format.seconds(first?.p50),
      first ? `95 % within ${format.seconds(first.p95)}` : "no answer in the last hour",
      first ? "median" : "",
    );
    this.speed.set(
      format.count(speed),
      today && `${format.compact(today.output_tokens)} tokens today, ${format.compact(today.thinking_tokens)} thinking`,
      speed === null ? "" : "tokens/s",
    );
    this.speed.draw(minutes.map((minute) => minute.output_tokens));
    this.cached.set(format.share(cached), "of the input, last hour");
    this.cached.setShare(cached);
    // Undefined without the ledger, null while it cannot be read.
    this.cost.element.hidden = today === undefined;
    const unknown = today?.unknown_cost_requests ? ` · ${today.unknown_cost_requests} of unknown price` : "";
    const saved = today ? `cache saved ${format.money(today.saved)}${unknown}` : "the store cannot be read";
    this.cost.set(format.money(today?.cost), saved, "estimate");
    this.cost.draw(minutes.map((minute) => minute.cost ?? 0));
  }

  // Oldest first: a new stream comes at the end, and moves none.
  fillStreams() {
    const rows = newestFirst(this.model.running.values()).reverse();
    this.streams.fill(rows, this.model.now());
    if (this.streamPanel.matches(":hover") && this.streams.lines.size) return;
    this.streams.arrange(rows, this.model.now());
    this.idle.hidden = rows.length > 0;
  }

  // A proxy that never answered anything has no figures to show.
  fillSteps(stats) {
    const isNew = this.model.rows.size + this.model.running.size === 0;
    this.body.hidden = isNew;
    this.steps.hidden = !isNew;
    if (isNew && this.isChanged("steps", [stats.base_url, stats.public_url])) {
      this.steps.replaceChildren(firstSteps(stats));
    }
  }

  fillNewest() {
    const rows = newestFirst(this.model.rows.values()).slice(0, NEWEST);
    this.newestPanel.hidden = rows.length === 0;
    if (!this.newestPanel.matches(":hover")) this.newest.arrange(rows, this.model.now());
  }

  // It changes with every request, but not under the pointer.
  fillHour(minutes) {
    if (this.hour.chosen !== null || !this.isChanged("hour", minutes)) return;
    const series = [{ name: "failed", tone: "bad", values: minutes.map((each) => each.failed) }, ...byClient(minutes)];
    const labels = minutes.map((each) => format.minute(each.minute));
    const whole = series.map(({ values }) => values.reduce((sum, each) => sum + each, 0));
    this.hour.update({ labels, names: labels, series, whole });
  }

  fillUpstreams(upstreams) {
    if (!this.isChanged("upstreams", upstreams)) return;
    this.upstreams.replaceChildren(
      ...upstreams.map(({ name, host, calls, waiting, state }) => {
        const figures = format.plural(calls, "call") + (waiting ? `, ${format.count(waiting)} waiting` : "");
        return h(
          "li",
          h("span.cut", { title: host }, name),
          h("span.quiet", figures),
          chip(UPSTREAM_STATES[state] ?? [state, "quiet"]),
        );
      }),
    );
  }

  fillAddresses({ base_url: here, public_url: everywhere }) {
    if (!this.isChanged("addresses", [here, everywhere])) return;
    this.addresses.replaceChildren(
      factList([
        ["Here", here && copyable(here)],
        ["Public", everywhere && copyable(everywhere)],
      ]),
    );
  }
}

// The requests of each minute that did not fail, by client, the busiest first.
function byClient(minutes) {
  const sums = new Map();
  for (const { clients } of minutes) {
    for (const [name, count] of Object.entries(clients)) sums.set(name, (sums.get(name) ?? 0) + count);
  }
  const names = [...sums].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const others = names.splice(MOST_CLIENTS);
  const values = (wanted) => minutes.map(({ clients }) => wanted.reduce((sum, name) => sum + (clients[name] ?? 0), 0));
  const series = names.map((name, tone) => ({ name, tone, values: values([name]) }));
  return others.length ? [...series, { name: "others", tone: 5, values: values(others) }] : series;
}
