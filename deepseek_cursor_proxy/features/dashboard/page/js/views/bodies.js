// Messages to read: of a traced request what the client sent, what went upstream and what was answered; of a session a
// trajectory. Thinking is folded; the search opens what it finds. Long texts are cut until the user opens them: a
// history may have megabytes.

import { fieldsOf, messagesOf } from "../body_parts.js";
import { h, setText } from "../dom.js";
import * as format from "../format.js";
import { button, searchField, section, segments } from "../parts.js";

const NAMES = { client: "Client sent", upstream: "Sent upstream", answer: "Answer" };
// Longer texts are cut; what is no prose is open if it is short.
const CUT = 2000;
const OPEN = 400;
const MOST_MATCHES = 500;
const LABELS = { thinking: "Thinking", call: "Call", result: "Result", other: "Other" };

export class Bodies {
  constructor(bodies, title = "Bodies", known = NAMES) {
    Object.assign(this, { bodies, texts: [], matches: [], place: -1 });
    this.field = searchField("Search", () => this.search());
    this.field.addEventListener("keydown", (event) => this.press(event));
    this.found = h("span.quiet.found", { role: "status" });
    this.content = h("div.messages");
    const names = Object.keys(known).filter((name) => bodies[name] ?? false);
    const words = Object.fromEntries(names.map((name) => [name, known[name]]));
    this.tabs = segments("Which body", words, (name) => this.open(name));
    const tabs = names.length > 1 ? this.tabs.element : null;
    this.element = section(title, h("div.body-tools", tabs, this.field, this.found), this.content);
    if (names.length) this.open(names.includes("upstream") ? "upstream" : names[0]);
  }

  open(name) {
    this.tabs.press(name);
    this.texts = [];
    const body = this.bodies[name];
    const { tools, others } = fieldsOf(body);
    const messages = messagesOf(body).map((message, index) => this.message(message, index));
    if (tools.length) messages.push(fold(format.plural(tools.length, "tool"), h("p.lines.mono", tools.join(", "))));
    if (others) messages.push(fold("Other fields", this.text("other", others)));
    this.content.replaceChildren(...messages);
    this.search();
  }

  message({ role, parts }, index) {
    const style = `message role-${/^[a-z]+$/.test(role) ? role : "other"}`;
    const head = h("div.message-head", h("b", role), h("span.quiet", String(index)));
    return h(
      "article",
      { class: style },
      head,
      parts.map((part) => this.part(part)),
    );
  }

  part({ kind, label, text }) {
    const box = this.text(kind, text);
    if (kind === "text") return box;
    const words = [LABELS[kind], label].filter(Boolean).join(" ");
    const folded = fold(`${words} · ${format.plural(text.length, "character")}`, box);
    folded.classList.add(`part-${kind}`);
    folded.open = kind !== "thinking" && text.length < OPEN;
    return folded;
  }

  text(kind, text) {
    const pre = h(kind === "text" || kind === "thinking" ? "pre.prose" : "pre");
    const all = button(`Show all ${format.count(text.length)} characters`, () =>
      this.write({ ...entry, isWhole: true }, ""),
    );
    const entry = { text, pre, all, isWhole: text.length <= CUT };
    this.texts.push(entry);
    this.write(entry, "");
    return h("div", pre, all);
  }

  // The text of an entry, with what was searched for marked.
  write(entry, wanted) {
    const text = entry.isWhole ? entry.text : `${entry.text.slice(0, CUT)}…`;
    entry.all.hidden = entry.isWhole;
    entry.isMarked = false;
    entry.pre.replaceChildren(text);
    if (!wanted) return;
    const lower = text.toLowerCase();
    const pieces = [];
    let end = 0;
    let at = lower.indexOf(wanted);
    while (at >= 0 && this.matches.length < MOST_MATCHES) {
      const mark = h("mark", text.slice(at, at + wanted.length));
      pieces.push(text.slice(end, at), mark);
      this.matches.push(mark);
      end = at + wanted.length;
      at = lower.indexOf(wanted, end);
    }
    entry.isMarked = true;
    entry.pre.replaceChildren(...pieces, text.slice(end));
  }

  search() {
    const wanted = this.field.value.trim().toLowerCase();
    this.matches = [];
    this.place = -1;
    for (const entry of this.texts) {
      const isFound = wanted.length > 1 && entry.text.toLowerCase().includes(wanted);
      if (isFound) {
        entry.isWhole = true;
        const folded = entry.pre.closest("details");
        if (folded) folded.open = true;
        this.write(entry, wanted);
      } else if (entry.isMarked) this.write(entry, "");
    }
    if (wanted.length > 1) this.step(1);
    else setText(this.found, "");
  }

  press(event) {
    if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && this.field.value) {
      this.field.value = "";
      this.search();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  step(by) {
    const count = this.matches.length;
    setText(this.found, count ? "" : "nothing found");
    if (count === 0) return;
    this.matches[this.place]?.classList.remove("is-here");
    this.place = (this.place + by + count) % count;
    const here = this.matches[this.place];
    here.classList.add("is-here");
    here.scrollIntoView({ block: "center" });
    setText(this.found, `${this.place + 1} of ${count === MOST_MATCHES ? `${count}+` : count}`);
  }
}

function fold(title, content) {
  return h("details.fold", h("summary", title), content);
}
