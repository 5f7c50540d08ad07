// The engine is in this process: Node's flavour of the bindings stands where the app's native module is.

jest.mock('../src/bindings', () => require('../node/bindings').bindings);

export {};
