// A table of requests, in flight or ended, one line each. A line is filled again when its request changes; only lines
// that come or go move others.

import { h, setClass, setText } from "../dom.js";
import * as format from "../format.js";
import { idOf } from "../model.js";
import { meter, openRowsOnClick, table } from "../parts.js";
import { APIS, clientName, modelName, setChip, stateOf } from "../words.js";

// field of a line: name of its column, classes of its cells; `c-…` is the width from which it is shown (views.css)
const COLUMNS = {
  number: ["#", "w-number"],
  time: ["Time", "w-time c-580 quiet"],
  client: ["Client", "w-client c-580"],
  model: ["Model", ""],
  api: ["API", "w-api c-1340 quiet"],
  key: ["Key", "w-key c-1560 quiet"],
  state: ["State", "w-state c-580"],
  history: ["History", "w-history c-1450 quiet"],
  reasoning: ["Reasoning", "w-reasoning c-1170"],
  input: ["Input · cached", "number w-input c-910"],
  output: ["Output", "number w-output c-680 c-820"],
  first: ["First token", "number w-first c-680 c-1020"],
  total: ["Time taken", "number w-total c-680"],
  cost: ["Cost", "number w-cost"],
};
export const ALL_FIELDS = Object.keys(COLUMNS);

export class RequestTable {
  constructor(label, fields, href) {
    Object.assign(this, { fields, href, lines: new Map() });
    this.body = h("tbody");
    this.element = table(
      label,
      fields.map((field) => COLUMNS[field]),
      this.body,
    );
    this.element.classList.add("request-table");
    openRowsOnClick(this.body);
  }

  fill(rows, now) {
    rows.forEach((row) => this.lines.get(idOf(row))?.fill(row, now));
  }

  arrange(rows, now) {
    const wanted = new Set(rows.map(idOf));
    for (const [id, line] of this.lines) {
      if (wanted.has(id)) continue;
      line.element.remove();
      this.lines.delete(id);
    }
    let next = this.body.firstElementChild;
    for (const row of rows) {
      const line = this.lines.get(idOf(row)) ?? this.add(row, now);
      if (line.element === next) next = next.nextElementSibling;
      else this.body.insertBefore(line.element, next);
    }
    this.element.hidden = rows.length === 0;
  }

  add(row, now) {
    const id = idOf(row);
    const line = new Line(this.fields, { number: row.number, id }, this.href(id));
    line.fill(row, now);
    this.lines.set(id, line);
    return line;
  }

  tick(now) {
    this.lines.forEach((line) => line.tick(now));
  }
}

class Line {
  constructor(fields, { number, id }, href) {
    this.row = null;
    const label = `Request ${number}${id < 0 ? " of an earlier run" : ""}`;
    this.link = h(id < 0 ? "a.quiet" : "a", { href, title: label, "aria-label": label }, String(number));
    this.state = h("span");
    this.model = h("span.cut");
    this.word = h("span");
    this.when = h("span");
    this.input = h("span");
    this.meter = meter("", 1);
    const contents = {
      number: [this.link],
      model: [this.model, h("small.below.cut", this.word, this.when)],
      state: [this.state],
      input: [this.input, this.meter.element],
    };
    this.cells = {};
    for (const [field, [, style]] of Object.entries(COLUMNS)) {
      this.cells[field] = h("td", { class: style.replace(/w-\S+/, "") }, contents[field] ?? []);
    }
    this.element = h(
      "tr.linked",
      { "data-id": id },
      fields.map((field) => this.cells[field]),
    );
  }

  fill(row, now) {
    if (row === this.row) return;
    this.row = row;
    const [word, tone] = stateOf(row);
    setText(this.model, modelName(row));
    this.cells.model.title = modelName(row);
    setChip(this.state, [word, tone]);
    // A narrow screen has no room for the usual.
    setText(this.word, row.outcome === "completed" ? "" : `${word} · `);
    setClass(this.word, tone);
    this.texts({ time: format.time(row.started_at), api: APIS[row.api] ?? row.api, key: row.key ?? "–" });
    setText(this.cells.client, clientName(row));
    this.cells.client.title = clientName(row);
    if (row.phase) this.fillRunning(row, now);
    else this.fillEnded(row);
  }

  fillRunning(row, now) {
    const output = row.output_tokens_estimate ? `≈ ${format.count(row.output_tokens_estimate)}` : "–";
    this.texts({ history: "", reasoning: "", output, first: format.seconds(row.first_token_seconds), cost: "" });
    setText(this.input, "");
    this.meter.element.hidden = true;
    this.tick(now);
  }

  tick(now) {
    if (this.row.phase) this.fillTotal(format.age(now - this.row.started_at));
  }

  fillTotal(total) {
    setText(this.cells.total, total);
    const client = this.row.client ? ` · ${this.row.client}` : "";
    setText(this.when, (this.row.phase ? total : format.minute(this.row.started_at)) + client);
  }

  fillEnded(row) {
    const { tokens, seconds } = row;
    const input = tokens ? tokens.hit + tokens.miss : 0;
    this.texts({
      history: row.messages ? `${format.plural(row.messages, "message")} · ${format.bytes(row.body_bytes)}` : "–",
      output: tokens ? format.count(tokens.output) : "–",
      first: format.seconds(seconds.first_token),
      cost: tokens ? format.requestMoney(row.cost, row.currency) : "–",
    });
    this.cells.reasoning.replaceChildren(...reasoning(row));
    setText(this.input, tokens ? `${format.compact(input)} · ${format.share(tokens.hit, input)}` : "–");
    this.meter.set(tokens?.hit / input);
    this.meter.element.hidden = !tokens;
    this.fillTotal(format.seconds(seconds.total));
  }

  texts(byField) {
    for (const [field, text] of Object.entries(byField)) setText(this.cells[field], text);
  }
}

function reasoning({ turns, repairs, repaired }) {
  const found = turns.filled + turns.kept + turns.empty;
  const parts = [h("span", found ? format.plural(found, "turn") : "–")];
  if (turns.missing) parts.push(h("span.bad", ` · ${turns.missing} missing`));
  else if (repaired || Object.keys(repairs).length) {
    parts.push(h("span.warn", { title: repaired ?? "the tool history was repaired" }, " · repaired"));
  }
  return parts;
}
