// The list of the view Requests, newest first. While it is held, new rows wait.
// Focus is roving: Tab enters the list at one row, the arrows move in it.

import { idOf } from "../model.js";
import { ALL_FIELDS, RequestTable } from "./request_table.js";

const PAGE = 10;

export class RequestList extends RequestTable {
  constructor(href) {
    super("Requests, newest first", ALL_FIELDS, href);
    this.active = null;
    this.opened = null;
  }

  get isEmpty() {
    return this.lines.size === 0;
  }

  // Returns how many rows wait, because the list is held.
  update(rows, now, isHeld) {
    this.fill(rows, now);
    if (isHeld && !this.isReleased) return rows.filter((row) => !this.lines.has(idOf(row))).length;
    this.isReleased = false;
    this.arrange(rows, now);
    if (!this.lines.has(this.active)) this.activate(rows.length ? idOf(rows[0]) : null);
    return 0;
  }

  add(row, now) {
    const line = super.add(row, now);
    line.link.tabIndex = -1;
    line.element.classList.toggle("is-open", idOf(row) === this.opened);
    return line;
  }

  // The next update shows everything, held or not: the user asked for it.
  release() {
    this.isReleased = true;
  }

  clear() {
    this.lines.clear();
    this.body.replaceChildren();
    this.active = null;
  }

  select(id) {
    for (const [each, line] of this.lines) {
      line.link.href = this.href(each);
      line.element.classList.toggle("is-open", each === id);
    }
    this.opened = id;
    if (this.lines.has(id)) this.activate(id);
  }

  activate(id) {
    if (this.lines.has(this.active)) this.lines.get(this.active).link.tabIndex = -1;
    if (this.lines.has(id)) this.lines.get(id).link.tabIndex = 0;
    this.active = id;
  }

  hasFocus() {
    return this.body.contains(document.activeElement);
  }

  focus() {
    this.lines.get(this.active)?.link.focus();
  }

  // The id that is active now, or null if there is none.
  move(step) {
    const ids = [...this.body.children].map((each) => Number(each.dataset.id));
    if (ids.length === 0) return null;
    const here = ids.indexOf(this.active);
    const isEntered = this.hasFocus() || this.opened !== null;
    const place = isEntered ? Math.min(ids.length - 1, Math.max(0, here + step)) : Math.max(0, here);
    this.activate(ids[place]);
    this.focus();
    return this.active;
  }

  jump(key) {
    const steps = { Home: -this.lines.size, End: this.lines.size, PageUp: -PAGE, PageDown: PAGE };
    if (!(key in steps)) return false;
    this.move(steps[key]);
    return true;
  }
}
