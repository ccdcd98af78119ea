// The view Usage: what the requests of a range of days cost and used, as figures, charts by day and a table by model,
// key, API or session. The address holds the range and the grouping; it is loaded again every minute while shown.

import { getJson, query } from "../api.js";
import { h, setText } from "../dom.js";
import * as format from "../format.js";
import { panel, segments, table, Tile } from "../parts.js";
import * as router from "../router.js";
import { empty, failure, loading } from "../states.js";
import { UsageCharts } from "./usage_charts.js";

const RANGES = { 1: "Today", 7: "7 days", 30: "30 days", 90: "90 days" };
const GROUPS = { model: "Model", key: "Key", api: "API", session: "Session", cause: "Cache loss", day: "Day" };
const REFRESH_MS = 60_000;
const MOST_ROWS = 100;

export const title = "Usage";
export const isShown = ({ today }) => today !== undefined;

export class View {
  constructor(model) {
    this.model = model;
    this.loadedAt = 0;
    this.ranges = segments("Range", RANGES, (range) => this.choose({ range }));
    this.groups = segments("Group by", GROUPS, (by) => this.choose({ by }));
    this.charts = new UsageCharts();
    this.cost = new Tile("Cost");
    this.saved = new Tile("Saved by the cache");
    this.divergence = new Tile("Cache losses");
    this.tokens = new Tile("Tokens");
    this.requests = new Tile("Requests");
    const tiles = [this.cost, this.saved, this.divergence, this.tokens, this.requests].map((tile) => tile.element);
    this.table = h("div");
    this.note = h("p.quiet.table-note");
    this.notice = h("div.panel");
    const groups = panel("Usage by", { class: "usage-table", aside: this.groups.element }, this.table, this.note);
    this.overview = h("div", h("div.tiles.usage-tiles", tiles), this.charts.element);
    this.content = h("div", { hidden: true }, this.overview, groups);
    const head = h("div.view-head", h("h1", "Usage"), this.ranges.element);
    this.element = h("div.usage", head, this.notice, this.content);
  }

  show({ options }) {
    this.options = options;
    this.days = options.range in RANGES ? options.range : "30";
    this.by = options.by in GROUPS ? options.by : "model";
    this.ranges.press(this.days);
    this.groups.press(this.by);
    this.load();
  }

  hide() {
    this.loading?.abort();
  }

  update() {}

  tick() {
    if (Date.now() - this.loadedAt > REFRESH_MS) this.load();
  }

  choose(changes) {
    router.replace({ view: "usage", options: { ...this.options, ...changes } });
  }

  async load() {
    this.loading?.abort();
    this.loading = new AbortController();
    this.loadedAt = Date.now();
    if (this.content.hidden) this.showNotice(loading(8));
    const ask = (by) => getJson(`/api/usage${query({ days: this.days, by })}`, this.loading.signal);
    try {
      const [byDay, byGroup] = await Promise.all([ask("day"), this.by === "day" ? null : ask(this.by)]);
      this.fill(byDay, byGroup ?? byDay);
    } catch (error) {
      if (error.name !== "AbortError") this.showNotice(failure(error, () => this.load()));
    }
  }

  showNotice(notice) {
    this.content.hidden = true;
    this.notice.hidden = false;
    this.notice.replaceChildren(notice);
  }

  fill(byDay, byGroup) {
    format.setCurrency(byDay.currency);
    if (byDay.total.requests === 0) {
      const isNew = this.model.rows.size === 0;
      const next = isNew ? h("a", { href: "#/now" }, "How to start an agent") : "Choose more days.";
      this.showNotice(empty("Nothing was used in these days", "Every request that ends is counted here.", next));
      return;
    }
    this.notice.hidden = true;
    this.content.hidden = false;
    // A single day has nothing to draw, and its sums are the last line of the table.
    this.overview.hidden = byDay.groups.length === 1;
    this.fillTiles(byDay.total);
    this.charts.update(byDay);
    const groups = [...byGroup.groups].sort(
      this.by === "day" ? (a, b) => b.name.localeCompare(a.name) : (a, b) => (b.cost ?? -1) - (a.cost ?? -1),
    );
    this.table.replaceChildren(usageTable(GROUPS[this.by], groups.slice(0, MOST_ROWS), byGroup.total));
    const cut = groups.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${format.count(groups.length)}. ` : "";
    setText(this.note, `${cut}Times are medians, costs estimates from list prices, days those of the proxy's clock.`);
  }

  fillTiles(total) {
    const input = total.hit_tokens + total.miss_tokens;
    const unknown = total.unknown_cost_requests
      ? `${format.plural(total.unknown_cost_requests, "request")} of unknown price`
      : "at list prices";
    this.cost.set(format.money(total.cost), unknown, "estimate");
    this.saved.set(format.money(total.saved), `${format.share(total.hit_tokens, input)} of the input cached`);
    this.divergence.set(format.money(total.divergence_cost), "for input that had been cached");
    this.tokens.set(
      format.compact(input + total.output_tokens),
      `${format.compact(total.output_tokens)} output, ${format.compact(total.thinking_tokens)} thinking`,
    );
    this.requests.set(format.count(total.requests), `${format.count(total.failed)} failed`);
  }
}

function usageTable(name, groups, total) {
  const columns = [[name, "w-name"], ...Object.keys(figures(total)).map((column) => [column, "number"])];
  const isChat = name === GROUPS.session;
  const rows = groups.map((group) => usageRow(group.name || "–", group, isChat));
  // On a narrow screen a row is a card, which repeats the names of the columns.
  return table(`Usage by ${name.toLowerCase()}`, columns, h("tbody", rows), h("tfoot", usageRow("Total", total)));
}

function usageRow(name, group, isChat = false) {
  return h(
    "tr",
    h("td", { title: name }, isChat ? h("a", { href: `#/chats/${name}` }, name) : name),
    Object.entries(figures(group)).map(([label, figure]) => h("td.number", { "data-label": label }, figure)),
  );
}

function figures(group) {
  const input = group.hit_tokens + group.miss_tokens;
  return {
    Requests: format.count(group.requests),
    Failed: format.count(group.failed),
    Input: format.compact(input),
    Cached: format.share(group.hit_tokens, input),
    Output: format.compact(group.output_tokens),
    Thinking: format.compact(group.thinking_tokens),
    "First token": format.seconds(group.first_token_seconds?.p50),
    Total: format.seconds(group.seconds?.p50),
    Saved: format.money(group.saved),
    "Cache loss": format.money(group.divergence_cost),
    Cost: format.money(group.cost),
  };
}
