// Renders markdown texts the way chat windows do. Reads { texts } from the file named on the command line. Prints, for
// each text and renderer: the HTML outside <details>, the text inside it, and the names of the elements inside it.
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

const markdownIt = new MarkdownIt({ html: true });
const remark = unified()
  .use(remarkParse)
  .use(remarkGfm)
  .use(remarkRehype, { allowDangerousHtml: true })
  .use(rehypeRaw)
  .use(rehypeStringify);
const renderers = {
  "markdown-it": (text) => markdownIt.render(text),
  marked: (text) => marked.parse(text),
  remark: (text) => String(remark.processSync(text)),
};

const text = (node) => node.value ?? (node.childNodes ?? []).map(text).join("");
const names = (node) => (node.childNodes ?? []).flatMap((child) => (child.tagName ? [child.tagName] : []).concat(names(child)));

function look(html) {
  const page = parseFragment(html);
  const blocks = page.childNodes.filter((node) => node.tagName === "details");
  page.childNodes = page.childNodes.filter((node) => node.tagName !== "details");
  return { outside: serialize(page).trim(), inside: blocks.map(text).join(""), elements: blocks.flatMap(names), blocks: blocks.length };
}

const { texts } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const seen = texts.map((each) => Object.fromEntries(Object.entries(renderers).map(([name, render]) => [name, look(render(each))])));
console.log(JSON.stringify(seen));
