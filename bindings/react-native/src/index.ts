export { useLLM } from './useLLM';
export type { LLMProps, LLMType } from './useLLM';
export { LLM } from './llm';
export type { LoadRequest } from './llm';
export { models } from './models';
export { planModel } from './planModel';
export { setUp } from './setup';
export type { Setup } from './setup';
export { LapidaryError, ERROR_CODES } from './errors';
export type { ErrorCode } from './errors';
export {
  MessageCountContextStrategy,
  NoopContextStrategy,
  SlidingWindowContextStrategy,
  SummarisingContextStrategy,
} from './context';
export type { ContextStrategy, Summarising } from './context';
export { RemoteHost } from './hosts/remote';
export type { Host } from './host';
export type * from './types';
