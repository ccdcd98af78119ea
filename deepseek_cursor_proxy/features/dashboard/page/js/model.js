// What the page knows: the last figures, the requests in flight, the newest ended ones. Views read it. It is
// bounded: the oldest rows go.
//
// A row has an `id`: the number of its request or, for requests of earlier runs of the proxy, a negative one.

import { query } from "./api.js";

const MOST_ROWS = 500;

// Where an id stands in time: negative ones are older, and the more negative the newer.
const age = (id) => (id >= 0 ? id + 1e15 : -id);

export function newestFirst(rows) {
  return [...rows].sort((a, b) => age(idOf(b)) - age(idOf(a)));
}

export function idOf(row) {
  return row.id ?? row.number;
}

export class Model {
  constructor() {
    this.stats = null;
    this.running = new Map();
    this.rows = new Map();
    this.hasOlder = false;
    this.clockSkew = 0;
  }

  // Unix seconds by the proxy's clock.
  now() {
    return Date.now() / 1000 + this.clockSkew;
  }

  // The query for the requests that ended since the last figures; null if there are none.
  missing({ started_at: run, newest_request: newest }) {
    // Another run counts its requests from 1 again.
    const after = this.stats?.started_at === run ? this.stats.newest_request : undefined;
    return after === newest ? null : query({ limit: 100, after });
  }

  // What a poll has brought: the figures, and the page that was missing.
  update({ in_flight: running, ...stats }, page) {
    if (page) this.add(page, stats.started_at !== this.stats?.started_at);
    this.stats = stats;
    this.clockSkew = stats.now - Date.now() / 1000;
    this.running = new Map(running.map((each) => [each.number, each]).filter(([number]) => !this.rows.has(number)));
  }

  add({ requests, next_before: next }, isOtherRun) {
    // A gap between what is known and what came would look like a whole list.
    if (isOtherRun || next !== null) {
      this.rows.clear();
      this.hasOlder = next !== null;
    }
    requests.forEach((row) => this.rows.set(idOf(row), row));
    if (this.rows.size <= MOST_ROWS) return;
    for (const row of newestFirst(this.rows.values()).slice(MOST_ROWS)) this.rows.delete(idOf(row));
  }
}
