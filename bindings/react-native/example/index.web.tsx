// The app in a browser, with the engine in the process that serves the page.
import { AppRegistry } from 'react-native';
import { RemoteHost, models, type ModelEntry } from 'react-native-lapidary';

import { App } from './src/App';

const host = new RemoteHost(`${location.origin}/engine`);
const { llm } = models;
const more: ModelEntry[] = new URLSearchParams(location.search)
  .getAll('model')
  .map((source) => ({ source }));
const shown = [llm.pebble, ...more, llm.gemma3_270m, llm.gemma3_1b, llm.gemma4_e2b, llm.gemma4_e4b];

AppRegistry.registerComponent('LapidaryExample', () => () => <App models={shown} host={host} />);
const rootTag = document.getElementById('root') as never;
AppRegistry.runApplication('LapidaryExample', { rootTag, initialProps: {} });
