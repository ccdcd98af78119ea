// The view Sessions: the recorded sessions, and beside them one of them: its trajectories as a tree, and the one that
// is open with its messages and its thinking. The address has both: #/sessions/{uuid} and #/sessions/{uuid}.{node}.

import { getJson } from "../api.js";
import { h, setText } from "../dom.js";
import * as format from "../format.js";
import { factList, iconButton, openRowsOnClick, section, table } from "../parts.js";
import * as router from "../router.js";
import { empty, failure, loading } from "../states.js";
import { APIS, chip } from "../words.js";
import { Bodies } from "./bodies.js";

const COLUMNS = [
  ["Session", ""],
  ["Last use", "w-used c-580"],
  ["Requests", "number w-first c-910"],
  ["Trajectories", "number w-api c-910"],
  ["Tokens", "number w-first c-680"],
  ["Cost", "number w-cost"],
];

export const title = "Sessions";
// Null: they cannot be read, which the view says.
export const isShown = ({ sessions }) => sessions !== 0;

export class View {
  constructor() {
    this.sessions = null;
    this.item = null;
    this.count = h("span.quiet");
    this.list = h("section.panel.list-pane", { "aria-label": "Sessions" }, loading(6));
    this.detail = h("section.panel.detail-pane", { "aria-label": "Session", hidden: true });
    this.split = h("div.split", this.list, this.detail);
    this.element = h("div.sessions", h("div.view-head", h("h1", "Sessions"), this.count), this.split);
  }

  show(route) {
    const isSame = this.item === route.item;
    this.item = route.item;
    this.split.classList.toggle("has-item", this.item !== null);
    this.detail.hidden = this.item === null;
    this.load();
    if (this.item !== null && !isSame) this.open(...this.item.split("."));
  }

  update() {}

  async load() {
    try {
      this.sessions = (await getJson("/api/sessions")).sessions;
      this.fill();
    } catch (error) {
      this.list.replaceChildren(failure(error, () => this.load()));
    }
  }

  fill() {
    setText(this.count, format.plural(this.sessions.length, "session"));
    const open = this.item?.split(".")[0];
    const body = h("tbody", this.sessions.map((each) => sessionRow(each, each.uuid === open)));
    openRowsOnClick(body);
    const sessions = table("Sessions", COLUMNS, body);
    sessions.classList.add("request-table");
    this.list.replaceChildren(sessions);
  }

  async open(uuid, node = null) {
    this.detail.replaceChildren(loading(6));
    try {
      const tree = await getJson(`/api/sessions/${uuid}`);
      const chosen = node ?? String(tree.nodes.at(-1)?.id ?? "");
      const trajectory = chosen ? await getJson(`/api/sessions/${uuid}/nodes/${chosen}`) : null;
      if (this.item?.split(".")[0] !== uuid) return;
      this.detail.replaceChildren(...detail(tree, trajectory, () => this.close()));
    } catch (error) {
      this.detail.replaceChildren(failure(error, () => this.open(uuid, node)));
    }
  }

  close() {
    router.go({ view: "sessions" });
  }

  onKey(key) {
    if (key !== "Escape" || this.item === null) return false;
    this.close();
    return true;
  }
}

function sessionRow(session, isOpen) {
  const href = router.format({ view: "sessions", item: session.uuid });
  const name = session.name || session.uuid.slice(0, 8);
  const link = h("a.cut", { href, "aria-current": isOpen ? "true" : null }, name);
  const below = `${format.dayTime(session.used_at)} · ${format.compact(session.tokens)} tokens`;
  const figure = (text, style) => h("td", { class: `number ${style}` }, text);
  return h(
    "tr",
    { class: isOpen ? "linked is-open" : "linked" },
    h("td", { title: name }, link, session.tags.map((tag) => chip([tag, "quiet plain"])), h("small.below", below)),
    h("td.quiet.c-580", { title: format.dateTime(session.used_at) }, format.dayTime(session.used_at)),
    figure(format.count(session.requests), "c-910"),
    figure(format.count(session.nodes), "c-910"),
    figure(format.compact(session.tokens), "c-680"),
    figure(session.requests ? format.money(session.cost) : "–", ""),
  );
}

function detail({ session, nodes }, trajectory, close) {
  const title = h("div.detail-title", h("h2", session.name || session.uuid.slice(0, 8)));
  const head = h("div.panel-head", title, h("div.detail-buttons", iconButton("close", "Close", close)));
  const facts = factList([
    ["Id", h("code", session.uuid)],
    ["Model", session.model],
    ["Created", format.dateTime(session.created_at)],
  ]);
  const count = format.plural(nodes.length, "trajectory", "trajectories");
  const parts = trajectory
    ? [section(count, nodeTree(session.uuid, nodes, trajectory)), ...messages(trajectory)]
    : [empty("No request yet", "Use its base URL in a client.")];
  return [head, h("div.detail-content", facts, ...parts)];
}

// A branch stands below the trajectory it parted from.
function nodeTree(uuid, nodes, open) {
  const children = new Map();
  for (const node of nodes) children.set(node.parent, [...(children.get(node.parent) ?? []), node]);
  const items = [];
  const add = (parent, depth) => {
    for (const node of children.get(parent) ?? []) {
      items.push(nodeItem(uuid, node, depth, node.id === open?.id));
      add(node.id, depth + 1);
    }
  };
  add(null, 0);
  return h("ul.tree", items);
}

function nodeItem(uuid, node, depth, isOpen) {
  const href = router.format({ view: "sessions", item: `${uuid}.${node.id}` });
  const words = `${format.plural(node.turns, "turn")} · ${format.plural(node.message_count, "message")}`;
  const item = h(
    "li",
    h("a", { href, "aria-current": isOpen ? "true" : null }, node.title || `Trajectory ${node.id}`),
    h("span.quiet", words),
    node.is_complete ? null : chip(["broken off", "warn"]),
  );
  item.style.paddingInlineStart = `${Math.min(depth, 12) * 16}px`;
  return item;
}

function messages(node) {
  const facts = factList([
    ["Model", node.model],
    ["API", APIS[node.api] ?? node.api],
    ["Time", `${format.dateTime(node.started)}, ${format.seconds(node.finished - node.started)}`],
    ["Cost", format.money(node.cost)],
    ["End", node.finish_reason],
  ]);
  const tools = node.tools.map((name) => ({ name }));
  const bodies = new Bodies({ messages: { messages: node.messages, tools } }, "Messages", { messages: "Messages" });
  return [section("Trajectory", facts), bodies.element];
}
