// The view Store and settings: the store's file and its rows, the process, and every setting with the place its value
// comes from. Secrets arrive hidden.

import { getJson } from "../api.js";
import { h, setText } from "../dom.js";
import * as format from "../format.js";
import { factList, panel, searchField, table } from "../parts.js";
import { empty, failure, loading } from "../states.js";
import { chip } from "../words.js";

const ORIGINS = {
  default: ["default", "quiet plain"],
  file: ["file", "live plain"],
  environment: ["environment", "warn plain"],
  flag: ["flag", "good plain"],
};

export class StoreView {
  constructor(model) {
    this.model = model;
    this.config = null;
    this.store = h("div.panel-body");
    this.process = h("div.panel-body");
    this.field = searchField("Filter settings", () => this.fillSettings());
    this.changed = h("input", { type: "checkbox", onchange: () => this.fillSettings() });
    this.settings = h("div.settings");
    this.files = h("p.quiet.table-note");
    const label = h("label.field", this.changed, "changed only");
    const tools = h("div.setting-tools", label, this.field);
    this.element = h(
      "div.store",
      h("div.view-head", h("h1", "Store and settings")),
      h("div.grid.store-grid", panel("Store", {}, this.store), panel("Process", {}, this.process)),
      panel("Settings", { class: "settings-panel", aside: tools }, this.files, this.settings),
    );
  }

  show() {
    this.load();
  }

  async load() {
    if (!this.config) this.settings.replaceChildren(loading(6));
    try {
      this.config = await getJson("/api/config");
      this.fillSettings();
    } catch (error) {
      this.settings.replaceChildren(failure(error, () => this.load()));
    }
  }

  update() {
    const { stats } = this.model;
    if (this.element.querySelector(".store-grid:hover")) return;
    this.store.replaceChildren(storeFacts(stats.store, stats.cache));
    this.process.replaceChildren(processFacts(stats));
  }

  fillSettings() {
    if (!this.config) return;
    const wanted = this.field.value.trim().toLowerCase();
    const shown = this.config.settings.filter(
      (each) =>
        (!this.changed.checked || each.origin !== "default") &&
        `${each.name} ${each.help} ${each.value}`.toLowerCase().includes(wanted),
    );
    setText(this.files, `Settings file: ${this.config.config_path}`);
    this.settings.replaceChildren(shown.length ? settingsTable(shown) : empty("No setting matches"));
  }

  onKey(key) {
    if (key !== "/") return false;
    this.field.focus();
    return true;
  }
}

function storeFacts({ state, path, bytes, faults, rows }, cache) {
  const responses = "responses" in rows ? `, ${format.plural(rows.responses, "response")}` : "";
  const failed = faults ? h("span.bad", ` failed ${format.plural(faults, "time")} since the start`) : "";
  return factList([
    ["State", [chip(state === "usable" ? ["Usable", "good"] : [state, "bad"]), failed]],
    ["File", h("code", path)],
    ["Size", format.bytes(bytes)],
    ["Holds", format.plural(rows.reasonings, "reasoning") + responses],
    ["Response cache", cache === undefined ? null : cache ? cacheWords(cache) : "unknown"],
  ]);
}

function cacheWords({ entries, hits, misses, saved_tokens: tokens, saved: money }) {
  const use = hits + misses ? ` · ${format.plural(hits, "hit")}, ${format.plural(misses, "miss", "misses")}` : "";
  const saved = hits ? ` · ${format.compact(tokens)} tokens, ${format.money(money)} saved` : "";
  return `${format.plural(entries, "answer")}${use}${saved}`;
}

function processFacts({ version, uptime_seconds: uptime, started_at: start, process, connections, tracing }) {
  return factList([
    ["Version", version],
    ["Running for", `${format.uptime(uptime)}, since ${format.dateTime(start)}`],
    ["Process", `${process.pid}, Python ${process.python}`],
    ["CPU time", format.seconds(process.cpu_seconds)],
    ["Memory", format.bytes(process.memory_bytes)],
    ["Open files", format.count(process.open_files)],
    ["Connections", format.count(connections)],
    ["Tracing", tracing ? "on: bodies are written to the trace folder" : "off"],
  ]);
}

function settingsTable(settings) {
  const columns = [
    ["Setting", "w-setting"],
    ["Value", ""],
  ];
  return table("Settings", columns, h("tbody", settings.map(settingRow)));
}

function settingRow({ name, value, origin, help, is_secret: isSecret }) {
  const shown = h(isSecret ? "code.quiet" : "code", String(value ?? "–"));
  const from = chip(ORIGINS[origin] ?? [origin, "plain"]);
  return h("tr", h("td", h("code", name), from), h("td", shown, h("small.quiet", help)));
}
