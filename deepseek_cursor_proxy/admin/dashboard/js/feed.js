// The feed of events, GET /api/events, read with fetch: EventSource cannot send the key.
//
// A feed that ends or falls silent is opened again, after 1, 2, 4 … 30 seconds. Each time it opens, `onOpen` fills the
// gap from the JSON API. A refused key ends it until `start` is called again.

import { ApiError, get } from "./api.js";

const LONGEST_PAUSE_MS = 30_000;
// The listener sends a heartbeat every 15 seconds.
const SILENCE_MS = 40_000;

export class Feed {
  // handlers: onOpen() -> promise, onEvent(name, data), onState({name, until, error})
  constructor(handlers) {
    this.handlers = handlers;
    this.attempt = 0;
    this.pause = null;
    this.reading = null;
  }

  start() {
    clearTimeout(this.pause);
    this.reading?.abort();
    this.reading = new AbortController();
    this.read(this.reading);
  }

  async read(reading) {
    if (this.attempt === 0) this.handlers.onState({ name: "connecting" });
    let failure = new ApiError(0, "The proxy does not answer.");
    try {
      const response = await get("/api/events", reading.signal);
      await this.handlers.onOpen();
      this.attempt = 0;
      this.handlers.onState({ name: "live" });
      await this.events(response.body.getReader(), reading);
    } catch (error) {
      if (error instanceof ApiError) failure = error;
    }
    if (this.reading !== reading) return; // start() was called meanwhile
    reading.abort();
    this.wait(failure);
  }

  wait(error) {
    if (error.status === 401 || error.status === 403) {
      this.handlers.onState({ name: "refused", error });
      return;
    }
    const milliseconds = Math.min(LONGEST_PAUSE_MS, 1000 * 2 ** this.attempt) * (0.85 + 0.3 * Math.random());
    this.attempt += 1;
    this.handlers.onState({ name: "waiting", until: Date.now() + milliseconds, error });
    this.pause = setTimeout(() => this.start(), milliseconds);
  }

  async events(reader, reading) {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const silence = setTimeout(() => reading.abort(), SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const blocks = text.split("\n\n");
      text = blocks.pop();
      blocks.forEach((block) => this.pass(block));
    }
  }

  pass(block) {
    let name = "message";
    let data = "";
    for (const line of block.split("\n")) {
      const [, field, value] = /^(\w*): ?(.*)$/.exec(line) ?? [];
      if (field === "event") name = value;
      else if (field === "data") data += value;
    }
    if (data) this.handlers.onEvent(name, JSON.parse(data));
  }
}
