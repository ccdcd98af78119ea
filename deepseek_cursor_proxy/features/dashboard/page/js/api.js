// The JSON API of the admin listener, and its key.
//
// The key comes in the address's fragment (#key=…), which browsers send to no server. It is taken out of the address
// and the history at once, kept in sessionStorage until the tab is closed, and sent in a header.

export class ApiError extends Error {
  // status 0: no answer at all.
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const MARK = "#key=";
let key = null;

export function takeKey() {
  if (location.hash.startsWith(MARK)) {
    setKey(location.hash);
    history.replaceState(null, "", `${location.pathname}#/now`);
  }
  key = key ?? read();
  return key !== null;
}

// A key, or the link that holds it. What cannot stand in a header is no part of a key.
export function setKey(text) {
  const [, inLink] = text.split(MARK);
  key = (inLink === undefined ? text : decode(inLink)).replace(/[^\x21-\x7e]/g, "");
  try {
    sessionStorage.setItem("admin-key", key);
  } catch {
    // Without storage the key lasts until the page is loaded again.
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function read() {
  try {
    return sessionStorage.getItem("admin-key");
  } catch {
    return null;
  }
}

// A response that is a success; else an ApiError.
export async function get(path, signal) {
  let response;
  try {
    response = await fetch(path, { headers: { Authorization: `Bearer ${key}` }, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The proxy does not answer.");
  }
  if (!response.ok) throw new ApiError(response.status, await messageOf(response));
  return response;
}

export async function getJson(path, signal) {
  return (await get(path, signal)).json();
}

async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The proxy answered ${response.status}.`;
  }
}

export function query(values) {
  const filled = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return filled.length ? `?${new URLSearchParams(filled)}` : "";
}
