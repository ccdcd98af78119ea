// Renders texts with every renderer and prints what a browser would make of each: where the answer stands, what the
// thought reads, and which elements there are.
import { readFileSync } from "node:fs";
import MarkdownIt from "markdown-it";
import { marked } from "marked";
import { parseFragment, serialize } from "parse5";
import rehypeRaw from "rehype-raw";
import rehypeStringify from "rehype-stringify";
import remarkGfm from "remark-gfm";
import remarkParse from "remark-parse";
import remarkRehype from "remark-rehype";
import { unified } from "unified";

const plain = () => unified().use(remarkParse);
const html = (remark) => remark.use(remarkRehype, { allowDangerousHtml: true }).use(rehypeRaw).use(rehypeStringify);
const [commonmark, linkified] = [new MarkdownIt("commonmark"), new MarkdownIt({ html: true, linkify: true })];
const [remark, gfm] = [html(plain()), html(plain().use(remarkGfm))];
const renderers = {
  commonmark: (text) => commonmark.render(text),
  "markdown-it": (text) => linkified.render(text),
  marked: (text) => marked.parse(text),
  remark: (text) => String(remark.processSync(text)),
  "remark-gfm": (text) => String(gfm.processSync(text)),
};

const content = (node) => (node.nodeName === "#text" ? node.value : (node.childNodes ?? []).map(content).join(""));
const elements = (node) =>
  (node.childNodes ?? []).flatMap((child) => (child.tagName ? [child.tagName, ...elements(child)] : elements(child)));

function seen(rendered) {
  const page = parseFragment(rendered);
  const top = page.childNodes.filter((node) => node.tagName);
  const details = top.filter((node) => node.tagName === "details");
  const thought = (details[0]?.childNodes ?? []).filter((node) => node.tagName !== "summary");
  const behind = top.slice(top.indexOf(details[0]) + 1).map((node) => [node.tagName, content(node), elements(node)]);
  page.childNodes = page.childNodes.filter((node) => node.tagName !== "details");
  const read = { thought: thought.map(content).join(""), inside: elements({ childNodes: thought }) };
  return { details: details.length, behind, outside: serialize(page).trim(), ...read };
}

const { texts } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const rendered = texts.map((text) =>
  Object.fromEntries(Object.entries(renderers).map(([name, render]) => [name, seen(render(text))])),
);
console.log(JSON.stringify(rendered));
