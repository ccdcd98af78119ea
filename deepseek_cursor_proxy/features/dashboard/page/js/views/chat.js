// The view of one chat: what it cost, how much of each request came from the cache, where the cache was lost, and
// where the reasoning of its turns came from. The address names the chat: #/chats/{session}.

import { getJson, query } from "../api.js";
import { Chart } from "../charts.js";
import { h, setText } from "../dom.js";
import * as format from "../format.js";
import { idOf, newestFirst } from "../model.js";
import { panel, Tile } from "../parts.js";
import { empty, failure, loading } from "../states.js";
import { RequestTable } from "./request_table.js";
import { turnStrip } from "./turn_strip.js";

const MOST_REQUESTS = 500;
const FIELDS = ["number", "time", "client", "model", "state", "reasoning", "input", "output", "total", "cost"];

export class ChatView {
  constructor(model) {
    this.model = model;
    this.item = null;
    this.known = new Set();
    this.name = h("code.quiet");
    this.requests = new Tile("Requests");
    this.cost = new Tile("Cost");
    this.cached = new Tile("Cached input", 1);
    this.lost = new Tile("Cache losses");
    const title = "Input of each request";
    this.chart = new Chart({ title, kind: "columns", format: format.compact, axis: format.roundCompact });
    this.turns = h("div.panel-body");
    this.losses = h("ol.panel-body.lines");
    this.lossPanel = panel("Where the cache was lost", {}, this.losses);
    this.table = new RequestTable("Requests of this chat, newest first", FIELDS, (id) => `#/requests/${id}`);
    this.notice = h("div.panel");
    this.content = h("div", { hidden: true }, this.layout());
    const back = h("a.end", { href: "#/requests" }, "All requests");
    this.element = h("div.chat", h("div.view-head", h("h1", "Chat"), this.name, back), this.notice, this.content);
  }

  layout() {
    const tiles = [this.requests, this.cost, this.cached, this.lost].map((tile) => tile.element);
    const turns = panel("Its turns in the newest request", {}, this.turns);
    const list = panel("All its requests", { class: "list-pane" }, this.table.element);
    return [
      h("div.tiles.chat-tiles", tiles),
      h("div.grid.chat-grid", this.chart.element, h("div.grid", turns, this.lossPanel)),
      list,
    ];
  }

  show({ item }) {
    if (item === this.item) return;
    this.item = item;
    this.known.clear();
    setText(this.name, item ?? "");
    this.showNotice(loading(8));
    this.load();
  }

  // Again when one of its requests has ended.
  update() {
    const isNews = [...this.model.rows.values()].some((row) => row.session === this.item && !this.known.has(idOf(row)));
    if (this.known.size && isNews && !this.isLoading) this.load();
  }

  async load() {
    const item = this.item;
    this.isLoading = true;
    try {
      const { requests } = await getJson(`/api/requests${query({ session: item, limit: MOST_REQUESTS })}`);
      const newest = requests.find((row) => row.turns.filled + row.turns.kept + row.turns.empty + row.turns.missing);
      const details = newest ? await getJson(`/api/requests/${idOf(newest)}`) : null;
      if (item === this.item) this.fill(newestFirst(requests), details);
    } catch (error) {
      if (item === this.item) this.showNotice(failure(error, () => this.load()));
    }
    this.isLoading = false;
  }

  showNotice(notice) {
    this.content.hidden = true;
    this.notice.hidden = false;
    this.notice.replaceChildren(notice);
  }

  fill(rows, details) {
    this.known = new Set(rows.map(idOf));
    if (!rows.length) {
      this.showNotice(empty("No request of this chat is known", "The ledger keeps requests for 90 days."));
      return;
    }
    this.notice.hidden = true;
    this.content.hidden = false;
    const used = rows.filter((row) => row.tokens).reverse();
    this.fillTiles(rows, used);
    this.chart.update(inputs(used));
    this.turns.replaceChildren(turnStrip(details?.strip ?? []) ?? h("p.quiet", turnWords(details)));
    const losses = rows.filter((row) => row.divergence);
    this.lossPanel.hidden = losses.length === 0;
    this.losses.replaceChildren(...losses.map(lossLine));
    this.table.arrange(rows, this.model.now());
  }

  fillTiles(rows, used) {
    const sum = (read) => rows.reduce((total, row) => total + (read(row) ?? 0), 0);
    const hit = used.reduce((total, { tokens }) => total + tokens.hit, 0);
    const input = used.reduce((total, { tokens }) => total + tokens.hit + tokens.miss, 0);
    const { currency } = rows.find((row) => row.currency) ?? {};
    const clients = [...new Set(rows.map((row) => row.client).filter(Boolean))].join(", ");
    const count = rows.length >= MOST_REQUESTS ? `${MOST_REQUESTS}+` : format.count(rows.length);
    this.requests.set(count, clients || format.dateTime(rows.at(-1).started_at));
    const saved = sum((row) => row.saved);
    this.cost.set(
      used.some((row) => row.cost !== null) ? format.money(sum((row) => row.cost), currency) : "unknown",
      `estimate; the cache saved ${format.money(saved, currency)}`,
    );
    this.cached.set(format.share(hit, input), `of ${format.compact(input)} tokens`);
    this.cached.setShare(hit / input);
    const losses = rows.filter((row) => row.divergence).length;
    const cost = format.money(sum((row) => row.divergence_cost), currency);
    this.lost.set(format.count(losses), losses ? `cost about ${cost} more` : "each request continued the one before");
  }
}

function inputs(used) {
  const kinds = [
    ["cached", 1, ({ hit }) => hit],
    ["not cached", 2, ({ miss }) => miss],
  ];
  const series = kinds.map(([name, tone, read]) => ({ name, tone, values: used.map(({ tokens }) => read(tokens)) }));
  const names = used.map((row) => `Request ${row.number}, ${format.time(row.started_at)}`);
  const whole = series.map(({ values }) => values.reduce((total, each) => total + each, 0));
  return { labels: used.map((row) => String(row.number)), names, series, whole };
}

function lossLine({ number, divergence, divergence_cost: cost, currency, ...row }) {
  const link = h("a", { href: `#/requests/${idOf({ number, ...row })}` }, `Request ${number}`);
  const price = cost ? ` · about ${format.requestMoney(cost, currency)} more` : "";
  return h("li", link, `: ${divergence}${price}`);
}

// Of requests of earlier runs only the counts are known.
function turnWords(details) {
  if (!details) return "No turn of this chat needed its reasoning yet.";
  const { filled, kept, empty: without, missing } = details.turns;
  return `${filled} from the store, ${kept} from the client, ${without} without thoughts, ${missing} missing`;
}
