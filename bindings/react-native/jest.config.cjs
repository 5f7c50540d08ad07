// React Native's preset, with the engine in this process through Node's flavour of the bindings.
module.exports = {
  preset: '@react-native/jest-preset',
  testMatch: ['<rootDir>/tests/**/*.test.{ts,tsx}'],
  setupFiles: ['<rootDir>/tests/setup.ts'],
  moduleNameMapper: {
    '^react-native-lapidary$': '<rootDir>/src/index.ts',
  },
  // One engine after another: two cores are not more when four processes want them.
  maxWorkers: 1,
  // A machine that does other things, too.
  testTimeout: 120_000,
};
