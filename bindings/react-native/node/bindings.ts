// The engine in this process: the generated TypeScript for Node, checked against the library when it is
// loaded. It has the names of the one for React Native, so it stands in its place.

import * as lapidary from './generated/lapidary';
import type { Bindings } from '../src/hosts/native';

lapidary.default.initialize();

export const bindings = lapidary as unknown as Bindings;
