// The body of a request or an answer as messages of parts, for all three APIs. Pure; it trusts nothing: what it does
// not know is shown as JSON.
//
//   message: {role, parts: [{kind: "text" | "thinking" | "call" | "result" | "other", label, text}]}

const LISTS = ["messages", "input", "system", "instructions", "tools"];

export function messagesOf(body) {
  if (typeof body === "string") return [message("answer", [part("text", "", body)])];
  if (Array.isArray(body)) return body.map(readItem);
  if (!isObject(body)) return [];
  const turns = body.messages ?? body.input;
  if (turns === undefined) return [readItem({ role: "answer", ...body })];
  const start = body.system ?? body.instructions;
  const first = start ? [readItem({ role: "system", content: start })] : [];
  return [
    ...first,
    ...(typeof turns === "string" ? [readItem({ role: "user", content: turns })] : asList(turns).map(readItem)),
  ];
}

// What is beside the messages: the names of the tools, and the other fields as JSON.
export function fieldsOf(body) {
  if (!isObject(body) || (body.messages ?? body.input) === undefined) return { tools: [], others: null };
  const others = Object.entries(body).filter(([name]) => !LISTS.includes(name));
  const tools = asList(body.tools).map((tool) => String(tool?.function?.name ?? tool?.name ?? tool?.type ?? "?"));
  return { tools, others: others.length ? json(Object.fromEntries(others)) : null };
}

function readItem(item) {
  if (!isObject(item)) return message("?", [part("other", "", json(item))]);
  if (item.type === "reasoning")
    return message("assistant", [part("thinking", "", texts(item.content ?? item.summary))]);
  if (/_call$/.test(item.type))
    return message("assistant", [
      part("call", item.name ?? item.type, pretty(item.arguments ?? item.input ?? item.action)),
    ]);
  if (/_call_output$/.test(item.type)) return message("tool", [part("result", item.call_id ?? "", texts(item.output))]);
  const thinking = item.reasoning_content ?? item.reasoning;
  const parts = typeof thinking === "string" && thinking.trim() ? [part("thinking", "", thinking)] : [];
  parts.push(...contentParts(item.content));
  for (const call of asList(item.tool_calls))
    parts.push(
      part("call", call?.function?.name ?? call?.name ?? "?", pretty(call?.function?.arguments ?? call?.arguments)),
    );
  if (item.role === "tool") return message("tool", [part("result", item.tool_call_id ?? "", texts(item.content))]);
  return message(item.role ?? item.type ?? "?", parts);
}

function contentParts(content) {
  if (typeof content === "string") return content ? [part("text", "", content)] : [];
  return asList(content).map((block) => {
    if (typeof block === "string") return part("text", "", block);
    if (block?.type === "thinking") return part("thinking", "", String(block.thinking ?? ""));
    if (block?.type === "tool_use") return part("call", block.name ?? "?", pretty(block.input));
    if (block?.type === "tool_result") return part("result", block.tool_use_id ?? "", texts(block.content));
    return typeof block?.text === "string"
      ? part("text", "", block.text)
      : part("other", block?.type ?? "", json(block));
  });
}

function texts(content) {
  if (typeof content === "string") return content;
  return asList(content)
    .map((block) => block?.text ?? json(block))
    .join("\n");
}

// Arguments are JSON in a string, which may be cut off.
function pretty(value) {
  if (typeof value !== "string") return json(value ?? {});
  try {
    return json(JSON.parse(value));
  } catch {
    return value;
  }
}

const message = (role, parts) => ({ role: String(role), parts });
const part = (kind, label, text) => ({ kind, label: String(label), text });
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const asList = (value) => (Array.isArray(value) ? value : []);
const json = (value) => JSON.stringify(value, null, 2) ?? "";
