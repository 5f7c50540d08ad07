/**
 * What kind of failure an error is. The same words in every language and in the HTTP API; they are only
 * added to, never changed.
 */
export const ERROR_CODES = [
  'internal_error',
  'non_finite_logits',
  'invalid_argument',
  'context_length_exceeded',
  'chat_template_refused',
  'all_tokens_masked',
  'invalid_program',
  'invalid_tokenizer',
  'invalid_chat_template',
  'not_found',
  'network_error',
  'io_error',
  'out_of_memory',
  'device_error',
  'unsupported',
  'busy',
  'cancelled',
  'queue_full',
  'invalid_prefix_file',
  'slow_reader',
  'model_unloaded',
] as const;

export type ErrorCode = (typeof ERROR_CODES)[number];

/** The one kind of error that this package rejects with. */
export class LapidaryError extends Error {
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string) {
    super(message);
    this.name = 'LapidaryError';
    this.code = code;
  }

  /** Whatever was thrown, as one of ours. */
  static from(thrown: unknown): LapidaryError {
    if (thrown instanceof LapidaryError) return thrown;
    const message = thrown instanceof Error ? thrown.message : String(thrown);
    const aborted = thrown instanceof Error && thrown.name === 'AbortError';
    return new LapidaryError(aborted ? 'cancelled' : 'internal_error', message);
  }
}

export function isErrorCode(word: unknown): word is ErrorCode {
  return (ERROR_CODES as readonly unknown[]).includes(word);
}
