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

let key = null;

export function takeKey() {
  const given = /^#key=([^&]+)/.exec(location.hash);
  if (given) {
    setKey(decodeURIComponent(given[1]));
    history.replaceState(null, "", `${location.pathname}#/now`);
  }
  key = key ?? read();
  return key !== null;
}

// A key, or the whole link that holds it.
export function setKey(text) {
  const inLink = /#key=([^&\s]+)/.exec(text);
  key = (inLink ? decodeURIComponent(inLink[1]) : text).trim();
  try {
    sessionStorage.setItem("admin-key", key);
  } catch {
    // Without storage the key lasts until the page is loaded again.
  }
}

function read() {
  try {
    return sessionStorage.getItem("admin-key");
  } catch {
    return null;
  }
}

// The response, or an ApiError; who reads it sees the errors of the connection as ApiErrors, too.
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
  const response = await get(path, signal);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The answer of the proxy broke off.");
  }
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
