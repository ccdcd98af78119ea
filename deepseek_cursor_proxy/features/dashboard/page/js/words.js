// The words of the API as people read them, and the tone each has. Unknown ones are shown as they came.

import { h, setClass, setText } from "./dom.js";

export const OUTCOMES = {
  completed: ["Completed", "good"],
  failed: ["Failed", "bad"],
  client_left: ["Client left", "warn"],
  refused: ["Refused", "bad"],
  passed_through: ["Passed on", "quiet"],
};
const PHASES = { queued: ["Queued", "warn"], sent: ["Waiting", "live"], streaming: ["Streaming", "live"] };
export const APIS = {
  chat: "Chat",
  responses: "Responses",
  messages: "Messages",
  passthrough: "Passed on",
  other: "Other",
};
export const UPSTREAM_STATES = {
  closed: ["Healthy", "good"],
  open: ["Failing", "bad"],
  half_open: ["Trying again", "warn"],
};
// What was wrong in a history of tool calls, and what DeepSeek got.
export const REPAIRS = {
  cancelled: "call without a result: sent as cancelled",
  moved: "result away from its call: moved there",
  repeated: "result sent twice: left out",
  orphaned: "result without a call: sent as text",
  named: "call without an id: given one",
  emptied: "empty message: left out",
};

// Where the reasoning of a turn came from: word, tone.
export const SOURCES = {
  store: ["from the store", 0],
  client: ["from the client", 1],
  display: ["from the thinking block", 3],
  empty: ["without thoughts", 5],
  missing: ["missing", "missing"],
  none: ["not needed", "none"],
};

// A request in flight has a phase, an ended one an outcome.
export function stateOf(row) {
  return row.phase ? (PHASES[row.phase] ?? [row.phase, "live"]) : (OUTCOMES[row.outcome] ?? [row.outcome, "quiet"]);
}

export function chip([word, tone]) {
  return setChip(h("span"), [word, tone]);
}

export function setChip(element, [word, tone]) {
  setClass(element, `chip ${tone}`);
  setText(element, word);
  return element;
}

// The program that sent a request, by its User-Agent.
export const clientName = (row) => row.client ?? "–";

// The model that is paid, which is never cut, and the name the client used if that was another.
export function modelName(row) {
  const asked = row.requested_model;
  return asked && row.model && asked !== row.model ? `${row.model} ← ${asked}` : (row.model ?? asked ?? "–");
}
