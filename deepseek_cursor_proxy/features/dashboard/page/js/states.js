// What the page shows when it has no data: the key is missing or wrong, the proxy is stopped, nothing happened yet,
// something is loading, an answer failed. Each says what to do.

import { h } from "./dom.js";
import { button, copyable } from "./parts.js";

const PROGRAM = "python -m deepseek_cursor_proxy";

// The page without access; `open` gets what was pasted.
export function gate(error, open) {
  const label = "Link or key";
  const input = h("input", { type: "password", "aria-label": label, placeholder: label, autocomplete: "off" });
  const form = h("form", input, h("button.button.primary", "Open"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim()) open(input.value);
  });
  const link = h("code.quiet", `${location.origin}/#key=…`);
  return h(
    "section.panel.gate",
    h("h1", error ? "The key was refused" : "This page needs its key"),
    error
      ? h("p.bad", { role: "alert" }, error.status === 401 ? "The proxy has another key now." : error.message)
      : h("p.quiet", "The key is on the machine where the proxy runs."),
    h(
      "ol",
      step("Run this there. It opens the dashboard, with the key:", copyable(`${PROGRAM} dashboard`)),
      step("Or open the link in the terminal where the proxy was started:", link),
      step("Or paste that link or its key here:", form),
    ),
  );
}

function step(words, what) {
  return h("li", words, h("div", what));
}

// The proxy is stopped, or answers with an error.
export function stoppedBanner(error, retry) {
  const remedy = [" Start it with ", h("code", PROGRAM), "; this page finds it again."];
  const words = [h("strong", error.message), " What you see is what it said last.", ...(error.status ? [] : remedy)];
  return [h("p", words), button("Try now", retry)];
}

export function empty(title, ...children) {
  return h("div.state", h("h2", title), ...children.map((child) => h("p", child)));
}

export function failure(error, retry) {
  const again = button("Try again", retry);
  return h("div.state", { role: "alert" }, h("h2", "This could not be loaded"), h("p", error.message), again);
}

export function loading(lines = 4) {
  return h("div.bones", { role: "status", "aria-label": "Loading" }, ...Array.from({ length: lines }, () => h("i")));
}

// What to do with a proxy that has answered nothing yet.
export function firstSteps({ base_url: here, public_url: everywhere }) {
  const cursor = everywhere
    ? step("In Cursor: Settings, Models, Override OpenAI Base URL:", copyable(everywhere))
    : step("Cursor calls from its own servers: restart with a public address:", copyable(`${PROGRAM} --tunnel`));
  return h(
    "section.gate",
    h("h1", "Waiting for the first request"),
    h("p.quiet", "Figures and charts appear with it."),
    h(
      "ol",
      step("Start an agent: claude, codex, opencode, qwen, aider or pi", copyable(`${PROGRAM} run claude`)),
      step("Or configure one for good; --undo reverts that:", copyable(`${PROGRAM} setup`)),
      step("Or by hand, with your DeepSeek key. OpenAI base URL:", copyable(here)),
      step("Anthropic base URL:", copyable(here.replace(/\/v1$/, ""))),
      cursor,
    ),
  );
}
