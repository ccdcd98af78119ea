// The view Keys: the named keys and groups, what each has used of its limits, what is left, and when it resets. Loaded
// again every few seconds while shown.

import { getJson } from "../api.js";
import { h, setText } from "../dom.js";
import * as format from "../format.js";
import { meter, panel } from "../parts.js";
import { failure, loading } from "../states.js";
import { chip } from "../words.js";

const REFRESH_MS = 10_000;
const NOTE = "Days and months begin at 00:00 UTC. Costs are estimates. A running request reserves what it may use.";
const WORDS = {
  usd_per_month: "This month",
  usd_per_day: "Today",
  tokens_per_minute: "Tokens a minute",
  requests_per_minute: "Requests a minute",
  concurrent: "Running now",
};
// From this share on a limit is nearly used up.
const NEARLY = 0.8;

export const title = "Keys";
export const isShown = (stats) => stats.named_keys > 0;

export class View {
  constructor() {
    this.loadedAt = 0;
    this.count = h("span.quiet");
    this.content = h("div", h("section.panel", loading(6)));
    this.element = h("div.keys", h("div.view-head", h("h1", "Keys"), this.count), this.content);
  }

  show() {
    this.load();
  }

  update() {}

  tick() {
    if (Date.now() - this.loadedAt > REFRESH_MS) this.load();
  }

  async load() {
    this.loadedAt = Date.now();
    try {
      this.fill(await getJson("/api/keys"));
    } catch (error) {
      this.content.replaceChildren(h("section.panel", failure(error, () => this.load())));
    }
  }

  fill({ keys, groups, currency }) {
    setText(this.count, format.plural(keys.length, "key"));
    const list = (title, holders) => panel(title, {}, h("ul.holders", holders.map((each) => row(each, currency))));
    const lists = [groups.length ? list("Groups", groups) : null, list("Keys", keys)];
    this.content.replaceChildren(h("div.grid", lists), h("p.quiet.table-note", NOTE));
  }
}

function row(holder, currency) {
  const isExpired = holder.expires_at && holder.expires_at * 1000 < Date.now();
  const marks = [
    holder.group ? chip([holder.group, "quiet plain"]) : null,
    holder.share_reasoning ? chip(["shares reasoning", "quiet plain"]) : null,
    isExpired ? chip(["expired", "bad"]) : null,
  ];
  const cost = format.money(holder.cost_today, currency);
  const facts = [
    "requests_today" in holder ? `${cost} today, ${format.plural(holder.requests_today, "request")}` : null,
    holder.note || null,
    holder.models?.length ? `only ${holder.models.join(", ")}` : null,
    holder.expires_at ? `${isExpired ? "expired" : "until"} ${format.dayTime(holder.expires_at)}` : null,
  ].filter((fact) => fact !== null);
  const limits = holder.limits.length ? holder.limits.map(limitRow) : [h("p.quiet", "No limits")];
  return h(
    "li",
    h("div.holder", h("h3", holder.name, ...marks), h("p.quiet", facts.join(" · "))),
    h("div.limits", limits),
  );
}

function limitRow({ limit, used, reserved, most, resets_at, is_money }) {
  const share = most ? used / most : 0;
  const tone = share >= 1 ? "bad" : share >= NEARLY ? "warn" : "good";
  const write = is_money ? (value) => format.money(value, "USD") : format.compact;
  const bar = meter(`limit-meter ${tone}`, "limit");
  bar.set(share);
  const ofIt = reserved ? `, ${write(reserved)} of it reserved` : "";
  const left = most > used ? `${write(most - used)} left${ofIt}` : resets_at ? "used up" : "all in use";
  const resets = resets_at ? `resets ${(is_money ? format.dayTime : format.minute)(resets_at)}` : "";
  return h(
    "div.limit",
    h("span.limit-name", WORDS[limit] ?? limit),
    bar.element,
    h("span.number", `${write(used)} of ${write(most)}`),
    h("span", { class: `limit-left ${tone === "good" ? "quiet" : tone}` }, left),
    h("span.quiet.limit-resets", resets),
  );
}
