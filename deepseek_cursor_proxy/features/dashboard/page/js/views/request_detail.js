// The detail of one request: tokens and cost, timing, where the reasoning of each turn came from, repairs, divergence,
// and the bodies if the proxy writes traces. It is loaded when the request is opened, and again when it has ended.

import { getJson } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { factList, iconButton, section, stackedBar } from "../parts.js";
import { empty, failure, loading } from "../states.js";
import { APIS, chip, modelName, REPAIRS, stateOf } from "../words.js";
import { Bodies } from "./bodies.js";
import { turnStrip } from "./turn_strip.js";

export class RequestDetail {
  constructor({ close, move }) {
    this.id = null;
    this.title = h("h2", { tabindex: "-1" });
    this.state = h("span");
    this.content = h("div.detail-content");
    const buttons = h(
      "div.detail-buttons",
      iconButton("newer", "Newer request (k)", () => move(-1)),
      iconButton("older", "Older request (j)", () => move(1)),
      iconButton("close", "Close (Esc)", close),
    );
    this.element = h(
      "section.panel.detail-pane",
      { "aria-label": "Request", hidden: true },
      h("div.panel-head", h("div.detail-title", this.title, this.state), buttons),
      this.content,
    );
  }

  show(id, model) {
    this.element.hidden = id === null;
    if (id === this.id) return;
    this.id = id;
    this.bodies = null;
    this.isRunning = this.isMissing = false;
    if (id === null) return;
    this.title.textContent = id < 0 ? "Request" : `Request ${id}`;
    this.state.replaceChildren();
    this.content.scrollTop = 0;
    const running = model.running.get(id);
    if (running) this.showRunning(running);
    else this.load();
  }

  update(model) {
    const running = model.running.get(this.id);
    if (running) this.showRunning(running);
    else if (this.isRunning || (this.isMissing && model.rows.has(this.id))) this.load();
  }

  searchField() {
    return this.id === null ? null : (this.bodies?.field ?? null);
  }

  async load() {
    const id = this.id;
    this.isRunning = this.isMissing = false;
    this.content.replaceChildren(loading(6));
    try {
      const request = await getJson(`/api/requests/${id}`);
      if (id === this.id) this.showEnded(request);
    } catch (error) {
      if (id === this.id) this.content.replaceChildren(this.failed(error));
    }
  }

  failed(error) {
    this.isMissing = error.status === 404;
    if (this.isMissing) {
      return empty("This request is gone", "The proxy keeps the details of the last 1,000 requests.");
    }
    return failure(error, () => this.load());
  }

  showRunning(running) {
    this.isRunning = true;
    this.state.replaceChildren(chip(stateOf(running)));
    const tokens = `≈ ${format.count(running.output_tokens_estimate)}`;
    const rest = h("p.quiet", "The rest is known when the request has ended.");
    this.content.replaceChildren(factList([["Tokens so far", tokens], ...about(running)]), rest);
  }

  showEnded(request) {
    this.title.textContent = `Request ${request.number}${this.id < 0 ? " of an earlier run" : ""}`;
    this.state.replaceChildren(chip(stateOf(request)));
    this.bodies = request.bodies ? new Bodies(request.bodies) : null;
    const hasMessage = request.message && request.outcome !== "client_left";
    const parts = [
      hasMessage ? h(`p.note-box.${stateOf(request)[1]}`, request.message) : null,
      tokens(request),
      timing(request),
      turnStrip(request.strip),
      brokenTurn(request),
      repairs(request),
      divergence(request),
      section("About this request", factList(about(request))),
      this.bodies ? this.bodies.element : hint(request.bodies_hint),
    ];
    this.content.replaceChildren(...parts.filter(Boolean));
  }
}

function tokens(request) {
  if (!request.tokens) return null;
  const { hit, miss, output, thinking } = request.tokens;
  const bar = stackedBar("Tokens", format.count, [
    ["input, cached", hit, 1],
    ["input, not cached", miss, 2],
    ["thinking", thinking, 3],
    ["answer", output - thinking, 0],
  ]);
  const saved = request.saved ? ` · the cache saved ${format.requestMoney(request.saved, request.currency)}` : "";
  const known = request.cost === null ? "price" : "estimate";
  const words = ` ${known} · ${format.share(hit, hit + miss)} of the input cached${saved}`;
  const cost = h("strong", format.requestMoney(request.cost, request.currency));
  return section("Tokens and cost", h("p.lead", cost, h("span.quiet", words)), bar);
}

function timing({ seconds, retries }) {
  const { queue, connect, first_token: first, total } = seconds;
  if (total === null) return null;
  const sent = (queue ?? 0) + (connect ?? 0);
  const bar = stackedBar("Time", format.seconds, [
    ["queue", queue, 5],
    ["connect", connect, 4],
    [first === null ? "no token came" : "first token", (first ?? total) - sent, 2],
    ["stream", first === null ? 0 : total - first, 0],
  ]);
  const again = retries ? h("span.warn", ` · ${format.plural(retries, "retry", "retries")}`) : null;
  return section("Time", h("p.lead", h("strong", format.seconds(total)), again), bar);
}

function brokenTurn({ repaired, repair }) {
  if (!repaired) return null;
  const texts = (title, lines) =>
    lines?.length ? [h("p.quiet", title), h("pre", lines.join("\n"))] : [];
  return section(
    "Broken turn",
    h("p.note-box.warn", `DeepSeek's answer was repaired: ${repaired}.`),
    ...texts("As it came", repair?.before),
    ...texts("As the client got it", repair?.after),
  );
}

function repairs({ repairs: counts, turns }) {
  const lines = Object.entries(counts).map(([name, count]) => `${count} × ${REPAIRS[name] ?? name}`);
  const lost = "replayed as text, because their reasoning is lost";
  if (turns.recovered) lines.push(`${format.plural(turns.recovered, "message")} ${lost}`);
  return lines.length
    ? section(
        "Repairs",
        h(
          "ul.lines",
          lines.map((line) => h("li", line)),
        ),
      )
    : null;
}

function divergence({ divergence: words, divergence_cost: cost, currency }) {
  if (!words) return null;
  const price = cost ? ` That cost about ${format.requestMoney(cost, currency)} more.` : "";
  const text = `Since the chat's previous request: ${words}. What follows in the prompt could not come from the cache.`;
  return section("Cache loss", h("p.note-box.warn", text + price));
}

function about(request) {
  const { messages, tools, body_bytes: bytes } = request;
  const history = [format.plural(messages, "message"), format.plural(tools, "tool"), format.bytes(bytes)];
  return [
    ["Model", modelName(request)],
    ["API", `${APIS[request.api] ?? request.api}, ${request.stream ? "stream" : "plain"}`],
    ["Started", format.dateTime(request.started_at)],
    ["Status", [request.status, request.finish_reason].filter(Boolean).join(" · ")],
    ["History", request.messages ? history.join(" · ") : null],
    ["Not forwarded", request.dropped?.join(", ")],
    ["Searches", request.searches ? String(request.searches) : null],
    ["Client", request.client],
    ["Key", request.key],
    ["Chat", request.session && h("a", { href: `#/chats/${request.session}` }, request.session)],
    ["Upstream", request.upstream],
  ];
}

function hint(text) {
  return section("Bodies", h("p.note-box", text ?? "Bodies are kept only while the proxy writes traces."));
}
