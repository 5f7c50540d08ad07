import { LapidaryError } from '../errors';
import type { Host } from '../host';
import { theHost } from '../setup';

/** A browser has no engine of its own. */
export const defaultHost = (): Host =>
  theHost(() => {
    throw new LapidaryError(
      'unsupported',
      'there is no engine here: call `setUp({ host: new RemoteHost(url) })`',
    );
  });
