// The view Requests: filters, the live list, and the detail of the open request beside it (or in its place, on a narrow
// screen). The address holds the filters and the open request.

import { getJson, query } from "../api.js";
import { announce, h, setText } from "../dom.js";
import { button } from "../parts.js";
import { idOf, newestFirst } from "../model.js";
import * as router from "../router.js";
import { empty, failure, firstSteps, loading } from "../states.js";
import { OUTCOMES } from "../words.js";
import { RequestDetail } from "./request_detail.js";
import { RequestList } from "./request_list.js";

const PAGE = 100;
const MOST_ROWS = 500;
// While it is live: more rows cost more with every request, and they pass too fast to be read.
const LIVE_ROWS = 200;
const FILTERS = ["model", "key", "outcome"];

export class RequestsView {
  constructor(model) {
    Object.assign(this, { model, options: {}, item: null, isPaused: false, error: null });
    // Pages of the history that were asked for. With these the newest rows give way, without them the oldest.
    this.older = new Map();
    this.list = new RequestList((id) => router.format({ view: "requests", item: id, options: this.options }));
    this.detail = new RequestDetail({ close: () => this.open(null), move: (step) => this.move(step) });
    this.selects = Object.fromEntries(
      FILTERS.map((name) => [name, h("select", { "aria-label": `Filter by ${name}`, onchange: () => this.filter() })]),
    );
    this.seen = { model: new Set(), key: new Set() };
    for (const [value, [word]] of Object.entries(OUTCOMES)) this.selects.outcome.append(h("option", { value }, word));
    FILTERS.forEach((name) => this.selects[name].prepend(h("option", { value: "" }, `All ${name}s`)));
    this.clear = button("Clear filters", () => router.go({ view: "requests", item: this.item }), { hidden: true });
    this.pause = button("", () => (this.hasNew ? this.showNew() : this.togglePause()), { class: "button live-button" });
    this.newest = button("Back to the newest", () => this.backToNewest(), { hidden: true });
    this.more = button("Older requests", () => this.loadOlder(), { class: "button more" });
    this.notice = h("div");
    const head = h(
      "div.view-head",
      h("h1", "Requests"),
      ...FILTERS.map((name) => this.selects[name]),
      this.clear,
      h("div.end", this.newest, " ", this.pause),
    );
    this.pane = h(
      "section.panel.list-pane",
      { "aria-label": "List of requests" },
      this.list.element,
      this.notice,
      h("div.list-foot", this.more),
    );
    this.split = h("div.split", this.pane, this.detail.element);
    this.element = h("div.requests", head, this.split);
    this.pane.addEventListener("pointerleave", () => this.update());
    this.pane.addEventListener("focusout", () => setTimeout(() => this.update()));
  }

  show({ item, options }) {
    const isFiltered = FILTERS.some((name) => options[name] !== this.options[name]);
    this.options = Object.fromEntries(FILTERS.filter((name) => options[name]).map((name) => [name, options[name]]));
    this.clear.hidden = !this.hasFilter;
    this.readFilters();
    if (isFiltered) this.reload();
    const isClosed = this.item !== null && item === null;
    this.item = /^-?\d+$/.test(item ?? "") ? Number(item) : null;
    this.split.classList.toggle("has-item", this.item !== null);
    this.list.select(this.item);
    this.detail.show(this.item, this.model);
    if (isClosed) this.list.focus();
    // On a narrow screen the detail takes the place of the list.
    if (this.item !== null && this.pane.offsetParent === null) this.detail.title.focus();
  }

  readFilters() {
    for (const name of FILTERS) {
      const value = this.options[name] ?? "";
      if (value && name !== "outcome") this.addOption(name, value);
      this.selects[name].value = value;
    }
  }

  filter() {
    const chosen = FILTERS.map((name) => [name, this.selects[name].value]);
    router.go({ view: "requests", item: this.item, options: Object.fromEntries(chosen) });
  }

  addOption(name, value) {
    if (this.seen[name].has(value) || this.seen[name].size >= 200) return;
    this.seen[name].add(value);
    this.selects[name].append(h("option", { value }, value));
  }

  update() {
    for (const row of [...this.model.rows.values(), ...this.model.running.values()]) {
      if (row.model) this.addOption("model", row.model);
      if (row.key) this.addOption("key", row.key);
    }
    const rows = this.rows();
    this.showPause(this.list.update(rows, this.model.now(), this.isHeld()));
    this.showNotice(rows.length);
    this.detail.update(this.model);
  }

  tick() {
    this.list.tick(this.model.now());
  }

  rows() {
    const known = [...this.model.running.values(), ...this.model.rows.values(), ...this.older.values()];
    const byId = new Map(known.filter((row) => this.matches(row)).map((row) => [idOf(row), row]));
    const rows = newestFirst(byId.values());
    return this.older.size ? rows.slice(-MOST_ROWS) : rows.slice(0, LIVE_ROWS);
  }

  matches(row) {
    return FILTERS.every((name) => !this.options[name] || row[name] === this.options[name]);
  }

  isHeld() {
    if (this.list.isEmpty) return false;
    return this.isPaused || this.item !== null || this.pane.matches(":hover") || this.list.hasFocus();
  }

  togglePause() {
    this.isPaused = !this.isPaused;
    announce(this.isPaused ? "The list is paused." : "The list is live.");
    this.update();
  }

  showNew() {
    this.list.release();
    this.update();
  }

  showPause(added) {
    this.newest.hidden = this.older.size === 0 || this.hasFilter;
    this.pause.setAttribute("aria-pressed", String(this.isPaused));
    this.hasNew = !this.isPaused && added > 0;
    const paused = added ? `Paused · ${added} new` : "Paused";
    setText(this.pause, this.isPaused ? paused : added ? `Show ${added} new` : "Live");
    this.pause.classList.toggle("is-behind", this.isPaused || added > 0);
    this.pause.title = this.isPaused ? "Let the list run (p)" : "Pause the list (p)";
  }

  showNotice(count) {
    const hasMore = this.older.size ? this.hasOlder : this.model.hasOlder || this.model.rows.size > count;
    this.more.hidden = count === 0 || !hasMore;
    const none = this.isLoading ? "loading" : this.hasFilter ? "no match" : "empty";
    const state = this.error ?? (count ? "rows" : none);
    if (state === this.state) return;
    this.state = state;
    let notice = h("div");
    if (this.error) notice = failure(this.error, () => this.loadOlder());
    else if (state === "loading") notice = loading(8);
    else if (state === "no match") notice = empty("No request matches", "Those that match appear here as they come.");
    else if (state === "empty") notice = firstSteps(this.model.stats);
    this.notice.replaceChildren(notice);
  }

  get hasFilter() {
    return Object.keys(this.options).length > 0;
  }

  // With filters, what matches may be far back: the proxy searches.
  reload() {
    this.older.clear();
    this.list.clear();
    if (this.hasFilter) this.load(null);
  }

  loadOlder() {
    const oldest = this.rows().at(-1);
    this.load(oldest ? idOf(oldest) : null);
  }

  async load(before) {
    const path = `/api/requests${query({ ...this.options, before, limit: PAGE })}`;
    this.asked = path;
    this.isLoading = this.more.disabled = true;
    this.error = null;
    try {
      const page = await getJson(path);
      if (path === this.asked) this.addOlder(page);
    } catch (error) {
      this.error = error;
    }
    this.isLoading = this.more.disabled = false;
    this.showNew();
  }

  addOlder(page) {
    const rows = newestFirst([...this.older.values(), ...page.requests]).slice(-MOST_ROWS);
    this.older = new Map(rows.map((row) => [idOf(row), row]));
    this.hasOlder = page.next_before !== null;
  }

  backToNewest() {
    this.reload();
    this.update();
    window.scrollTo(0, 0);
  }

  open(id) {
    router.go({ view: "requests", item: id, options: this.options });
  }

  move(step) {
    const id = this.list.move(step);
    if (id !== null && this.item !== null) this.open(id);
  }

  onKey(key) {
    if (key === "j" || (key === "ArrowDown" && this.list.hasFocus())) this.move(1);
    else if (key === "k" || (key === "ArrowUp" && this.list.hasFocus())) this.move(-1);
    else if (key === "p") this.togglePause();
    else if (key === "/") (this.detail.searchField() ?? this.selects.model).focus();
    else if (key === "Escape" && this.item !== null) this.open(null);
    else if (this.list.hasFocus() && this.list.jump(key)) return true;
    else return false;
    return true;
  }
}
