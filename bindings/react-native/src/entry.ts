import { LapidaryError } from './errors';
import type { ModelEntry, ModelInput } from './types';

/** A model, however it was written. */
export function modelEntry(model: ModelInput): ModelEntry {
  if (typeof model === 'string') return { source: model };
  if ('source' in model) return model;
  if (typeof model?.modelSource === 'string') return { source: model.modelSource };
  throw new LapidaryError('invalid_argument', 'a model needs a `source`: a name or a path');
}
