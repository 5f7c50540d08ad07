// What the generated TypeScript for Node takes from `@ubjs/node`: the addon that calls a shared library,
// and where that library is. The npm package of this name is older than the addon.

import { createRequire } from 'node:module';

interface Opened {
  register(definitions: object): Record<string, (...args: never[]) => unknown>;
}

const addons: Record<string, string> = {
  'linux-x64': '@ubjs/node-linux-x64-gnu',
};

const name = addons[`${process.platform}-${process.arch}`];
if (!name) throw new Error(`the tests run on Linux for x86-64, not on ${process.platform}-${process.arch}`);
const native = createRequire(__filename)(name) as {
  UniffiNativeModule: { open(path: string): Opened };
};

const tag = (tag: string) => ({ tag });

const FfiType = {
  UInt8: tag('UInt8'),
  Int8: tag('Int8'),
  UInt16: tag('UInt16'),
  Int16: tag('Int16'),
  UInt32: tag('UInt32'),
  Int32: tag('Int32'),
  UInt64: tag('UInt64'),
  Int64: tag('Int64'),
  Float32: tag('Float32'),
  Float64: tag('Float64'),
  Handle: tag('Handle'),
  RustBuffer: tag('RustBuffer'),
  ForeignBytes: tag('ForeignBytes'),
  RustCallStatus: tag('RustCallStatus'),
  VoidPointer: tag('VoidPointer'),
  Void: tag('Void'),
  Callback: (name: string) => ({ tag: 'Callback', name }),
  Struct: (name: string) => ({ tag: 'Struct', name }),
  Reference: (inner: object) => ({ tag: 'Reference', inner }),
  MutReference: (inner: object) => ({ tag: 'MutReference', inner }),
};

/** `cargo xtask bindings --react-native` says where it built the library. */
function resolveLibPath(_: object): string {
  const path = process.env.LAPIDARY_FFI;
  if (!path) throw new Error('LAPIDARY_FFI must name liblapidary_ffi.so');
  return path;
}

export default { UniffiNativeModule: native.UniffiNativeModule, FfiType, resolveLibPath };
