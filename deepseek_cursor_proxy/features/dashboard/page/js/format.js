// Numbers as people read them: with units, the same number of digits for the same size, a dash for what is not known.
// Pure; the currency is set once from /api/stats.

const THIN = "\u202f";
const NONE = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const shortDate = { day: "numeric", month: "short" };
const shortTime = new Intl.DateTimeFormat("en-GB", { ...shortDate, hour: "2-digit", minute: "2-digit" });
const shortDay = new Intl.DateTimeFormat("en-GB", { ...shortDate, timeZone: "UTC" });
const longDay = new Intl.DateTimeFormat("en-GB", { ...shortDate, weekday: "short", timeZone: "UTC" });
const fullTime = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return isNumber(value) ? whole.format(value) : NONE;
}

export function plural(value, noun, nouns = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : nouns}`;
}

// 950, 12.3k, 1.20M: three digits that count.
export function compact(value) {
  if (!isNumber(value)) return NONE;
  for (const [letter, size] of Object.entries({ G: 1e9, M: 1e6, k: 1e3 })) {
    const scaled = value / size;
    if (Math.abs(scaled) >= 1) return scaled.toFixed(scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2) + letter;
  }
  return String(Math.round(value * 10) / 10);
}

export function share(part, all = 1) {
  if (!isNumber(part) || !isNumber(all) || all <= 0) return NONE;
  const percent = (100 * part) / all;
  // 100 % only if nothing is missing.
  return `${percent < 100 ? Math.min(99, Math.round(percent)) : 100}${THIN}%`;
}

export function seconds(value) {
  if (!isNumber(value)) return NONE;
  if (value >= 3600) return `${Math.floor(value / 3600)}${THIN}h ${Math.floor((value % 3600) / 60)}${THIN}min`;
  if (value >= 100) return `${Math.floor(value / 60)}${THIN}min ${Math.floor(value % 60)}${THIN}s`;
  return `${value.toFixed(value < 10 ? 2 : 1)}${THIN}s`;
}

// A duration that ticks: whole seconds.
export function age(value) {
  return value >= 100 ? seconds(value) : `${Math.max(0, Math.floor(value))}${THIN}s`;
}

export function uptime(value) {
  if (!isNumber(value)) return NONE;
  const days = Math.floor(value / 86400);
  return days ? `${days}${THIN}d ${Math.floor((value % 86400) / 3600)}${THIN}h` : seconds(Math.floor(value));
}

export function bytes(value) {
  if (!isNumber(value)) return NONE;
  if (value < 1000) return `${value}${THIN}B`;
  if (value < 1e6) return `${Math.round(value / 1e3)}${THIN}kB`;
  return value < 1e9 ? `${(value / 1e6).toFixed(1)}${THIN}MB` : `${(value / 1e9).toFixed(2)}${THIN}GB`;
}

const SIGNS = { USD: "$", CNY: "¥" };
let sign = "$";
export function setCurrency(name) {
  sign = SIGNS[name] ?? `${name} `;
}

// Sums are in cents, one request in hundredths of a cent. An unknown price is never 0. A request keeps the currency
// that the settings had when it ended.
export const money = (value, currency = null) => fixedMoney(value, currency, 2);
export const requestMoney = (value, currency = null) => fixedMoney(value, currency, 4);

function fixedMoney(value, currency, digits) {
  if (!isNumber(value)) return "unknown";
  const own = currency ? (SIGNS[currency] ?? `${currency} `) : sign;
  const least = 10 ** -digits;
  if (value > 0 && value < least / 2) return `<${own}${least}`;
  return own + value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// For an axis: as few digits as the step needs.
export const roundCompact = (value) => compact(value).replace(/[\d.]+/, Number);
export const roundMoney = (value, step) => {
  if (value >= 1000) return sign + roundCompact(value);
  return step < 0.01 ? requestMoney(value) : money(value);
};

export const time = (unix) => (isNumber(unix) ? clock.format(unix * 1000) : NONE);
export const minute = (unix) => time(unix).slice(0, 5);
export const dayTime = (unix) => (isNumber(unix) ? shortTime.format(unix * 1000) : NONE);
export const dateTime = (unix) => (isNumber(unix) ? fullTime.format(unix * 1000) : NONE);
export const day = (iso) => shortDay.format(new Date(`${iso}T00:00:00Z`));
export const weekday = (iso) => longDay.format(new Date(`${iso}T00:00:00Z`));
