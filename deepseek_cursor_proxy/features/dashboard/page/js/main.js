// The start of the page: key, theme, poll, and which view is shown. Views are made when first shown and know nothing of
// each other; the address says which one it is (router.js).

import { getJson, setKey, takeKey } from "./api.js";
import { announce, h, setText } from "./dom.js";
import * as format from "./format.js";
import { installKeyboard, showHelp } from "./keyboard.js";
import { Model } from "./model.js";
import { Poll } from "./poll.js";
import * as router from "./router.js";
import { gate, loading, stoppedBanner } from "./states.js";
import { cycleTheme, showTheme } from "./theme.js";
import { ChatView } from "./views/chat.js";
import { NowView } from "./views/now.js";
import { RequestsView } from "./views/requests.js";
import { StoreView } from "./views/store.js";

const VIEWS = {
  now: [NowView, "Now"],
  requests: [RequestsView, "Requests"],
  chats: [ChatView, "Chat"],
  store: [StoreView, "Store and settings"],
};

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const linkState = document.getElementById("link-state");
const model = new Model();
const views = {};
let shown = null;
let link = { name: "connecting" };

const poll = new Poll(
  async (signal) => {
    // One after the other: a request that ends in between is in both, not in none.
    const stats = await getJson("/api/stats", signal);
    const missing = model.missing(stats);
    const page = missing && (await getJson(`/api/requests${missing}`, signal));
    format.setCurrency(stats.currency);
    model.update(stats, page);
    await showTabs(stats);
    if (shown && shown === views[currentName()]) shown.update();
    else showView();
    showTitle();
  },
  (state) => {
    // What could not be loaded meanwhile is loaded now.
    if (state.name === "live" && link.name === "waiting") shown.show(router.current());
    link = state;
    if (state.name === "refused") showGate(state.error);
    else showLink();
  },
);

// The views of features are loaded when the proxy names them. One without anything to show has no tab.
async function showTabs(stats) {
  for (const name of stats.views) {
    if (!VIEWS[name]) {
      const { View, title, isShown } = await import(`./views/${name}.js`);
      VIEWS[name] = [View, title, isShown];
      tab("store").before(h("a", { href: `#/${name}`, "data-view": name }, title));
    }
    tab(name).hidden = !VIEWS[name][2](stats);
  }
}

const tab = (name) => document.querySelector(`.tabs [data-view="${name}"]`);

function currentName() {
  const { view } = router.current();
  return view in VIEWS && !tab(view)?.hidden ? view : "now";
}

function showView() {
  const name = currentName();
  const [View, title] = VIEWS[name];
  const view = (views[name] ??= new View(model));
  const isNew = shown !== view;
  if (isNew) {
    shown?.hide?.();
    shown = view;
    main.replaceChildren(view.element);
    window.scrollTo(0, 0);
  }
  document.querySelector(".tabs [aria-current]")?.removeAttribute("aria-current");
  tab(name === "chats" ? "requests" : name).setAttribute("aria-current", "page");
  view.show(router.current());
  view.update();
  showTitle();
  if (isNew && link.name === "live") announce(title);
}

function showTitle() {
  const running = model.running.size ? `(${model.running.size}) ` : "";
  const title = `${running}${VIEWS[currentName()][1]} · deepseek-cursor-proxy`;
  if (document.title !== title) document.title = title;
}

function showLink() {
  const seconds = Math.max(0, Math.ceil(((link.until ?? 0) - Date.now()) / 1000));
  const words = { connecting: "Connecting", live: "Live", waiting: `Stopped · ${seconds} s`, refused: "No access" };
  linkState.dataset.state = link.name;
  setText(linkState.lastElementChild, words[link.name]);
  document.body.classList.toggle("is-stale", link.name === "waiting");
  // One failure may be a restart of the proxy; it is over before the banner can be read.
  const isStopped = link.name === "waiting" && poll.attempt > 1;
  if (isStopped && banner.hidden) {
    announce(link.error.message);
    banner.replaceChildren(...stoppedBanner(link.error, () => poll.start()));
  }
  if (link.name === "live" && !banner.hidden) announce("The proxy answers again.");
  if (isStopped || link.name === "live") banner.hidden = !isStopped;
}

function showGate(error) {
  link = { name: "refused" };
  showLink();
  banner.hidden = true;
  shown?.hide?.();
  shown = null;
  main.replaceChildren(gate(error, open));
  main.querySelector("input")?.focus();
}

function open(key) {
  setKey(key);
  start();
}

function start() {
  poll.attempt = 0;
  poll.start();
  if (!main.hasChildNodes()) main.append(h("div.panel", loading(8)));
}

window.addEventListener("hashchange", () => {
  // A link with a key, pasted into a page that is open.
  if (location.hash.startsWith("#key=")) {
    takeKey();
    start();
  } else if (shown) showView();
});
setInterval(() => {
  if (link.name === "waiting") showLink();
  if (link.name === "live" && !document.hidden) shown?.tick?.();
}, 1000);

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.getElementById("theme-button").addEventListener("click", cycleTheme);
document.getElementById("help-button").addEventListener("click", showHelp);
installKeyboard(() => shown);
showTheme();
if (takeKey()) start();
else showGate(null);
