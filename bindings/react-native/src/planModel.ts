import { modelEntry } from './entry';
import type { Host } from './host';
import { defaultHost } from './hosts/default';
import { withBackend } from './shelf';
import type { LoadOptions, MemoryPlan, ModelInput } from './types';

/** What loading a downloaded model would take, and where it would run. Nothing is taken. */
export async function planModel(
  model: ModelInput,
  loadOptions: LoadOptions = {},
  host: Host = defaultHost(),
): Promise<MemoryPlan> {
  const entry = modelEntry(model);
  const opened = await host.open(entry.source);
  try {
    return await opened.plan(await withBackend(host, entry, loadOptions));
  } finally {
    opened.close();
  }
}
