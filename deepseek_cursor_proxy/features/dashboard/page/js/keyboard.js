// Shortcuts, and the dialog that lists them. A view answers the keys it knows with `onKey(key)`, which returns true.

import { h } from "./dom.js";
import { iconButton } from "./parts.js";
import { cycleTheme } from "./theme.js";

const SHORTCUTS = [
  [["1", "2", "…"], "the views, as their tabs are in order"],
  [["j", "k"], "next and previous request; also the arrows"],
  [["Enter"], "open the request"],
  [["Esc"], "close the request, clear the search"],
  [["p"], "pause the list, or let it run"],
  [["/"], "filter or search"],
  [["t"], "theme: as the system, light, dark"],
  [["?"], "this list"],
];

export function installKeyboard(shownView) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const isTyping = event.target.matches("input, select, textarea");
    if (isTyping && event.key !== "Escape") return;
    if (press(event.key, shownView())) event.preventDefault();
  });
}

function press(key, view) {
  if (view?.onKey?.(key)) return true;
  if (key === "?") showHelp();
  else if (key === "t") cycleTheme();
  else if (view && /^[1-9]$/.test(key)) document.querySelectorAll(".tabs a:not([hidden])")[key - 1]?.click();
  else return false;
  return true;
}

export function showHelp() {
  const dialog = document.getElementById("help");
  const close = iconButton("close", "Close", () => dialog.close());
  const rows = SHORTCUTS.map(([keys, words]) => [
    h(
      "dt",
      keys.map((key) => h("kbd", key)),
    ),
    h("dd", words),
  ]);
  const title = h("h1", { id: "help-title" }, "Keyboard shortcuts");
  dialog.replaceChildren(h("div.panel-head", title, close), h("dl", ...rows.flat()));
  dialog.showModal();
}
