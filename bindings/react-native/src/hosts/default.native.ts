import { Platform } from 'react-native';

import * as bindings from '../bindings';
import { type Setup, theHost } from '../setup';
import { NativeHost } from './native';
import type { Host } from '../host';

const make = ({ host: _, ...settings }: Setup): Host =>
  new NativeHost(bindings, { platform: Platform.OS, ...settings });

/** Engines in this app. */
export const defaultHost = (): Host => theHost(make);
