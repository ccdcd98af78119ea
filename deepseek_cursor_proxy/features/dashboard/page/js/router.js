// Routes in the address's fragment, so that the back button works and a view or a request can be linked:
//   #/now   #/requests?model=…&outcome=…   #/requests/12   #/chats/digest
//   #/usage?range=30&by=model   #/keys   #/sessions/uuid.node   #/store

import { query } from "./api.js";

export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view, item = null] = path.split("/");
  return { view: view || "now", item, options: Object.fromEntries(new URLSearchParams(search)) };
}

export function format({ view, item = null, options = {} }) {
  return `#/${view}${item === null ? "" : `/${item}`}${query(options)}`;
}

export function current() {
  return parse(location.hash);
}

export function go(route) {
  location.hash = format(route);
}

// The same place with other options: no step for the back button.
export function replace(route) {
  history.replaceState(null, "", format(route));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
