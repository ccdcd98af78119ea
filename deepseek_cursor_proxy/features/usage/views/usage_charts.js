// The charts of the view Usage, one column per day of the range, also for days without requests: cost by model, cached
// share, tokens by kind, latency.

import { Chart } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";

// More models than there are tones: the cheapest are one series.
const MOST_MODELS = 5;
const MOST_DAYS = 400;

export class UsageCharts {
  constructor() {
    this.cost = new Chart({
      title: "Cost per day, by model",
      kind: "columns",
      format: format.money,
      axis: format.roundMoney,
    });
    this.tokens = new Chart({
      title: "Tokens per day, by kind",
      kind: "columns",
      format: format.compact,
      axis: format.roundCompact,
    });
    this.cached = new Chart({
      title: "Cached share of the input",
      kind: "lines",
      format: (value) => format.share(value),
      most: 1,
    });
    const timed = { kind: "lines", format: format.seconds, axis: (value) => `${Number(value.toPrecision(3))} s` };
    this.first = new Chart({ title: "Time to the first token", ...timed });
    this.whole = new Chart({ title: "Time to the end", ...timed });
    const all = [this.cost, this.tokens, this.cached, this.first, this.whole];
    this.element = h("div.grid.charts", ...all.map((chart) => chart.element));
  }

  update({ since, until, days: known, groups, total }) {
    const days = range(since, until);
    const models = new Map(known.map((each) => [each.day, each.models]));
    const byDay = new Map(groups.map((each) => [each.name, each]));
    const axis = { labels: days.map(format.day), names: days.map(format.weekday) };
    this.cost.update({ ...axis, ...costs(days, models) });
    this.tokens.update({ ...axis, ...tokens(days, byDay, total) });
    this.cached.update({ ...axis, ...cachedShare(days, byDay, total) });
    this.first.update({ ...axis, ...latency("first_token_seconds", 3, days, byDay, total) });
    this.whole.update({ ...axis, ...latency("seconds", 0, days, byDay, total) });
  }
}

function range(since, until) {
  const days = [];
  const last = Date.parse(`${until}T00:00:00Z`);
  for (let day = Date.parse(`${since}T00:00:00Z`); day <= last && days.length < MOST_DAYS; day += 86_400_000) {
    days.push(new Date(day).toISOString().slice(0, 10));
  }
  return days;
}

function costs(days, models) {
  const sums = new Map();
  for (const used of models.values()) {
    for (const [name, { cost }] of Object.entries(used)) sums.set(name, (sums.get(name) ?? 0) + (cost ?? 0));
  }
  // A model without a price has no column.
  const names = [...sums]
    .filter(([, sum]) => sum > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([name]) => name);
  const shown = names.slice(0, names.length > MOST_MODELS + 1 ? MOST_MODELS : MOST_MODELS + 1);
  const others = names.slice(shown.length);
  const sumOf = (day, wanted) => wanted.reduce((sum, name) => sum + (models.get(day)?.[name]?.cost ?? 0), 0);
  const series = shown.map((name, index) => ({ name, tone: index, values: days.map((day) => sumOf(day, [name])) }));
  if (others.length)
    series.push({ name: `${others.length} others`, tone: 5, values: days.map((day) => sumOf(day, others)) });
  return { series, whole: series.map(({ values }) => values.reduce((sum, each) => sum + each, 0)) };
}

function tokens(days, byDay, total) {
  const kinds = [
    ["input, cached", 1, (group) => group.hit_tokens],
    ["input, not cached", 2, (group) => group.miss_tokens],
    ["thinking", 3, (group) => group.thinking_tokens],
    ["answer", 0, (group) => group.output_tokens - group.thinking_tokens],
  ];
  return seriesOf(kinds, days, byDay, total);
}

function cachedShare(days, byDay, total) {
  const read = (group) => {
    const input = group.hit_tokens + group.miss_tokens;
    return input ? group.hit_tokens / input : null;
  };
  return seriesOf([["cached", 1, read]], days, byDay, total);
}

function latency(field, tone, days, byDay, total) {
  const kinds = [
    ["median", tone, (group) => group[field]?.p50 ?? null],
    ["95 % within", 2, (group) => group[field]?.p95 ?? null],
  ];
  return seriesOf(kinds, days, byDay, total);
}

function seriesOf(kinds, days, byDay, total) {
  const value = (day, read) => (byDay.has(day) ? read(byDay.get(day)) : null);
  return {
    series: kinds.map(([name, tone, read]) => ({ name, tone, values: days.map((day) => value(day, read)) })),
    whole: kinds.map(([, , read]) => read(total)),
  };
}
