// The AI SDK through the proxy: a tool loop, then a second question in the same chat. Reads one JSON object from the
// file named on the command line: the base URL, the key, the model and the provider. Prints the steps as one JSON array.
import { readFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createDeepSeek } from "@ai-sdk/deepseek";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { baseURL, apiKey, model, provider, stream } = JSON.parse(readFileSync(process.argv[2], "utf8"));

const models = {
  "openai chat": () => createOpenAI({ baseURL, apiKey }).chat(model),
  "openai responses": () => createOpenAI({ baseURL, apiKey }).responses(model),
  "openai-compatible": () => createOpenAICompatible({ name: "proxy", baseURL, apiKey })(model),
  deepseek: () => createDeepSeek({ baseURL, apiKey })(model),
  anthropic: () => createAnthropic({ baseURL, apiKey })(model),
};
const tools = {
  get_weather: tool({
    description: "The weather.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `Rain in ${city}.`,
  }),
};
// Without these the provider would ask for no thinking (Messages) or drop it between turns (Responses).
const providerOptions = {
  anthropic: { thinking: { type: "enabled", budgetTokens: 2048 } },
  openai: { store: false, include: ["reasoning.encrypted_content"], reasoningSummary: "auto", forceReasoning: true },
};

async function ask(messages) {
  const wanted = { model: models[provider](), tools, messages, providerOptions, stopWhen: stepCountIs(5), maxRetries: 0 };
  if (!stream) return await generateText(wanted);
  const errors = [];
  const result = streamText({ ...wanted, onError: ({ error }) => errors.push(error) });
  await result.consumeStream();
  if (errors.length) throw errors[0];
  return { steps: await result.steps, responseMessages: await result.responseMessages };
}

const steps = [];
const messages = [];
for (const question of ["What is the weather in Rome?", "And tomorrow?"]) {
  messages.push({ role: "user", content: question });
  const answer = await ask(messages);
  messages.push(...answer.responseMessages);
  for (const step of answer.steps) {
    const results = step.toolResults.map((result) => result.output);
    steps.push({ text: step.text, reasoning: step.reasoningText ?? "", results, finish: step.finishReason });
  }
}
console.log(JSON.stringify(steps));
