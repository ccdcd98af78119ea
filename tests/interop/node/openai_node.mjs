// openai-node through the proxy. Reads one JSON object from the file named on the command line: the base URL, the key
// and the requests, each a method below with its body. Prints what came of each of them as one JSON array.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const { baseURL, apiKey, requests } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const methods = {
  // The helper's own sum of the events, and the same response fetched as one object.
  async responseStream(body) {
    const stream = client.responses.stream(body);
    const told = { reasoning: "", text: "" };
    const think = (event) => (told.reasoning += event.delta);
    stream.on("response.reasoning_text.delta", think);
    stream.on("response.reasoning_summary_text.delta", think);
    stream.on("response.output_text.delta", (event) => (told.text += event.delta));
    const final = await stream.finalResponse();
    return { final, told, stored: final.store ? await client.responses.retrieve(final.id) : final };
  },

  // The chunks added up by hand, the way most programs do it: every chunk has a first choice.
  async chatChunks(body) {
    const told = { content: "", reasoning: "", finish: [] };
    for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
      const { delta, finish_reason } = chunk.choices[0];
      told.content += delta.content ?? "";
      told.reasoning += delta.reasoning_content ?? "";
      if (finish_reason) told.finish.push(finish_reason);
    }
    return told;
  },

  // The helper's own sum of the chunks, and the same question answered in one object.
  async chatStream(body) {
    const stream = client.chat.completions.stream({ ...body, stream_options: { include_usage: true } });
    return { final: await stream.finalChatCompletion(), plain: await client.chat.completions.create(body) };
  },

  // The helper that runs tools and writes the history itself.
  async runTools({ stream, ...body }) {
    const tools = body.tools.map((tool) => ({ ...tool, function: { ...tool.function, function: () => "42", parse: JSON.parse } }));
    const runner = client.chat.completions.runTools({ ...body, tools, stream });
    return { content: await runner.finalContent() };
  },
};

const outcomes = [];
for (const { method, body } of requests) {
  try {
    outcomes.push(await methods[method](body));
  } catch (error) {
    outcomes.push({ error: String(error) });
  }
}
console.log(JSON.stringify(outcomes));
