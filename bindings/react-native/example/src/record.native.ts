import type { Recording } from './record';

/** React Native has no microphone of its own: give the samples of the recorder of your choice here. */
export async function record(): Promise<Recording> {
  throw new Error('add a recorder to this app: see src/record.native.ts');
}
