import { LapidaryError } from './errors';
import type { HostAnswerOptions } from './host';
import type { GenerationConfig, LLMTool, Tool, ToolChoice } from './types';

/** Numbers that cross as 32 bits without a sign. */
const COUNTS = ['topK', 'maxTokens', 'thinkingBudget', 'imageTokens'] as const;

/** A tool, however it was written. */
export function plainTool(tool: LLMTool): Tool {
  const plain = 'function' in tool ? tool.function : tool;
  if (typeof plain?.name !== 'string' || plain.name === '') {
    throw new LapidaryError('invalid_argument', 'a tool needs a name');
  }
  return plain;
}

/** What an engine is asked for; wrong numbers are refused by it. */
export function answerOptions(
  config: GenerationConfig,
  tools: Tool[],
  toolChoice?: ToolChoice,
): HostAnswerOptions {
  const { topP, topp, seed, responseFormat, outputTokenBatchSize, batchTimeInterval, ...rest } =
    config;
  for (const name of COUNTS) {
    const value = rest[name];
    if (value !== undefined && !(Number.isInteger(value) && value >= 0 && value < 2 ** 32)) {
      throw new LapidaryError('invalid_argument', `${name}: ${value} is not a whole number from 0`);
    }
  }
  const options: HostAnswerOptions = { ...rest };
  const share = topP ?? topp;
  if (share !== undefined) options.topP = share;
  if (seed !== undefined) options.seed = seedDigits(seed);
  if (responseFormat && responseFormat.type !== 'text') options.format = responseFormat;
  if (tools.length > 0) {
    options.tools = tools.map((tool) => ({
      name: tool.name,
      description: tool.description ?? '',
      parameters: JSON.stringify(tool.parameters ?? { type: 'object', properties: {} }),
      strict: tool.strict ?? false,
    }));
    if (toolChoice !== undefined) options.toolChoice = toolChoice;
  }
  return options;
}

function seedDigits(seed: number | bigint): string {
  if (typeof seed === 'number' ? Number.isSafeInteger(seed) && seed >= 0 : seed >= 0) {
    return seed.toString();
  }
  throw new LapidaryError('invalid_argument', `seed: ${seed} is not a whole number from 0`);
}
