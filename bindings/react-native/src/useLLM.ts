import { useEffect, useRef, useState, useSyncExternalStore } from 'react';

import { modelEntry } from './entry';
import type { Host } from './host';
import { defaultHost } from './hosts/default';
import { LLM, type LoadRequest } from './llm';
import type { LLMState, LoadOptions, MemoryPlan, ModelInput } from './types';

export interface LLMProps {
  model: ModelInput;
  /** Neither downloads nor loads; shows the plan of a model that is here already. */
  preventLoad?: boolean;
  loadOptions?: LoadOptions;
  /** Is shown what the model takes before it is taken; `false` leaves it. */
  acceptPlan?: (plan: MemoryPlan) => boolean | Promise<boolean>;
  /** Where the engine is; by default in this app. */
  host?: Host;
}

type Actions = Pick<
  LLM,
  | 'configure'
  | 'generate'
  | 'generateObject'
  | 'sendMessage'
  | 'interrupt'
  | 'deleteMessage'
  | 'getGeneratedTokenCount'
  | 'getPromptTokenCount'
  | 'getTotalTokenCount'
>;

export interface LLMType extends LLMState, Actions {}

/** A model with one conversation. It is loaded while the component is mounted. */
export function useLLM({ model, preventLoad = false, loadOptions, acceptPlan, host }: LLMProps): LLMType {
  const [llm] = useState(() => new LLM());
  const state = useSyncExternalStore(llm.subscribe, llm.getState, llm.getState);
  const latest = useRef({ model, loadOptions, acceptPlan });
  useEffect(() => {
    latest.current = { model, loadOptions, acceptPlan };
  });
  // Written anew with each render, but the same model.
  const { source, backends } = modelEntry(model);
  const key = JSON.stringify([source, backends, Object.entries(loadOptions ?? {}).sort()]);
  useEffect(() => {
    const { acceptPlan, ...given } = latest.current;
    const request: LoadRequest = { model: given.model, host: host ?? defaultHost() };
    if (given.loadOptions) request.loadOptions = given.loadOptions;
    if (acceptPlan) request.acceptPlan = acceptPlan;
    void (preventLoad ? llm.look(request) : llm.load(request));
    return () => llm.unload();
  }, [llm, key, preventLoad, host]);
  return { ...state, ...actions(llm) };
}

const bound = new WeakMap<LLM, Actions>();

/** The same functions at each render. */
function actions(llm: LLM): Actions {
  let known = bound.get(llm);
  if (!known) {
    const { configure, generate, generateObject, sendMessage, interrupt, deleteMessage } = llm;
    const { getGeneratedTokenCount, getPromptTokenCount, getTotalTokenCount } = llm;
    const counts = { getGeneratedTokenCount, getPromptTokenCount, getTotalTokenCount };
    const acts = { configure, generate, generateObject, sendMessage, interrupt, deleteMessage };
    known = { ...acts, ...counts };
    bound.set(llm, known);
  }
  return known;
}
