// Asks the proxy once a second what it does.
//
// After a failure it asks again in 1, 2, 4 … 30 seconds. A refused key ends it until `start` is called again.

import { ApiError } from "./api.js";

const PERIOD_MS = 1000;
const LONGEST_PAUSE_MS = 30_000;
// An answer takes milliseconds.
const SILENCE_MS = 10_000;

export class Poll {
  // ask(signal) -> promise; onState({name, until, error})
  constructor(ask, onState) {
    Object.assign(this, { ask, onState, attempt: 0, pause: null, asking: null });
  }

  start() {
    this.asking?.abort();
    if (this.attempt === 0) this.onState({ name: "connecting" });
    this.next();
  }

  async next() {
    clearTimeout(this.pause);
    const asking = (this.asking = new AbortController());
    const silence = setTimeout(() => asking.abort(), SILENCE_MS);
    let failure = null;
    try {
      await this.ask(asking.signal);
    } catch (error) {
      failure = error instanceof ApiError ? error : new ApiError(0, "The proxy does not answer.");
    }
    clearTimeout(silence);
    if (this.asking !== asking) return; // start() was called meanwhile
    if (failure) this.wait(failure);
    else {
      this.attempt = 0;
      this.onState({ name: "live" });
      this.pause = setTimeout(() => this.next(), PERIOD_MS);
    }
  }

  wait(error) {
    if (error.status === 401 || error.status === 403) {
      this.onState({ name: "refused", error });
      return;
    }
    const milliseconds = Math.min(LONGEST_PAUSE_MS, 1000 * 2 ** this.attempt) * (0.85 + 0.3 * Math.random());
    this.attempt += 1;
    this.onState({ name: "waiting", until: Date.now() + milliseconds, error });
    this.pause = setTimeout(() => this.next(), milliseconds);
  }
}
