// The theme: that of the system, or the one chosen with the switch, which the browser remembers.
// first_paint.js sets the remembered one before the page is drawn.

import { announce } from "./dom.js";

const THEMES = ["auto", "light", "dark"];
const WORDS = { auto: "as the system", light: "light", dark: "dark" };

export function cycleTheme() {
  const root = document.documentElement;
  root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // Without storage the choice lasts until the page is loaded again.
  }
  showTheme();
  announce(`Theme: ${WORDS[root.dataset.theme]}`);
}

export function showTheme() {
  const theme = document.documentElement.dataset.theme;
  const button = document.getElementById("theme-button");
  button.setAttribute("aria-label", `Theme: ${WORDS[theme]}. Change it`);
  button.title = `Theme: ${WORDS[theme]} (t)`;
  button.querySelector("use").setAttribute("href", `#i-${theme}`);
}
