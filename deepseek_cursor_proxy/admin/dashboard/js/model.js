// What the page knows: the last figures, the requests in flight, the newest ended ones. Views read it and are called in
// an animation frame, at most five times a second however many events came. It is bounded: the oldest rows go.
//
// A row has an `id`: the number of its request or, for requests of earlier runs of the proxy, a negative one.

const MOST_ROWS = 500;
// Drawn in every frame, a thousand requests a second fill a processor.
const PAUSE_MS = 200;

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
    this.hasRows = false;
    this.hasOlder = false;
    this.clockSkew = 0;
    this.listeners = new Set();
    this.isScheduled = false;
    this.nextAt = 0;
  }

  onChange(listener) {
    this.listeners.add(listener);
  }

  // Unix seconds by the proxy's clock.
  now() {
    return Date.now() / 1000 + this.clockSkew;
  }

  setStats({ in_flight: running, ...stats }) {
    // Another run counts its requests from 1 again.
    if (this.stats && stats.started_at && stats.started_at !== this.stats.started_at) this.rows.clear();
    this.stats = { ...this.stats, ...stats };
    if (stats.now) this.clockSkew = stats.now - Date.now() / 1000;
    if (running) this.running = new Map(running.map((each) => [each.number, each]));
    this.changed();
  }

  // The newest page of the history: also the rows that were missed while the feed was away.
  setNewest(rows, hasOlder) {
    const isOverlap = rows.some((row) => this.rows.has(idOf(row)));
    // A gap between what is known and what came would look like a whole list.
    if (hasOlder && !isOverlap) this.rows.clear();
    rows.forEach((row) => this.rows.set(idOf(row), row));
    this.hasRows = true;
    this.hasOlder = hasOlder;
    this.trim();
    this.changed();
  }

  apply(name, data) {
    if (name === "stats") this.setStats(data);
    else if (name === "running" && !this.rows.has(data.number)) this.running.set(data.number, data);
    else if (name === "ended") this.running.delete(data.number);
    else if (name === "request") {
      this.running.delete(data.number);
      this.rows.set(idOf(data), data);
      this.trim();
    }
    this.changed();
  }

  trim() {
    if (this.rows.size <= MOST_ROWS) return;
    for (const row of newestFirst(this.rows.values()).slice(MOST_ROWS)) this.rows.delete(idOf(row));
  }

  changed() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    setTimeout(() => requestAnimationFrame(() => this.draw()), this.nextAt - performance.now());
  }

  draw() {
    this.isScheduled = false;
    this.nextAt = performance.now() + PAUSE_MS;
    this.listeners.forEach((listener) => listener());
  }
}
