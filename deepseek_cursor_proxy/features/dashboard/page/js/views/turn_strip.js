// The assistant turns of a history as a strip of cells, coloured and marked by where each reasoning came from. The
// legend counts them in words; the list below says it turn by turn, for who cannot see or tell the colours.

import { h } from "../dom.js";
import * as format from "../format.js";
import { barLegend, section } from "../parts.js";
import { SOURCES } from "../words.js";

export function turnStrip(strip) {
  if (strip.length === 0) return null;
  const counts = new Map(Object.keys(SOURCES).map((source) => [source, 0]));
  strip.forEach(({ source }) => counts.set(source, (counts.get(source) ?? 0) + 1));
  const found = [...counts].filter(([, count]) => count > 0);
  const words = found.map(([source, count]) => `${count} ${word(source)}`).join(", ");
  const cells = strip.map((turn) => h("i", { class: style(turn.source), title: sentence(turn) }));
  const items = found.map(([source, count]) => ({
    style: style(source),
    name: word(source),
    figure: String(count),
  }));
  const title = `Reasoning of ${format.plural(strip.length, "turn")}`;
  return section(
    title,
    h("div.strip", { role: "img", "aria-label": `${title}: ${words}` }, cells),
    barLegend(items),
    turnList(strip),
  );
}

// Made when it is opened: a history may have hundreds of turns.
function turnList(strip) {
  const list = h("details.fold", h("summary", "Turn by turn"));
  const fill = () =>
    list.append(
      h(
        "ol.lines",
        strip.map((turn) => h("li", sentence(turn))),
      ),
    );
  list.addEventListener("toggle", fill, { once: true });
  return list;
}

const word = (source) => SOURCES[source]?.[0] ?? source;
const style = (source) => `cell tone-${SOURCES[source]?.[1] ?? "none"}`;

function sentence({ index, source, proof }) {
  return `Message ${index}: ${word(source)}${proof ? ` (${proof})` : ""}`;
}
