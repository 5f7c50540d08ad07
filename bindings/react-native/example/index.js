// The app on a phone.
import { AppRegistry } from 'react-native';
import { setUp, models } from 'react-native-lapidary';
import { CachesDirectoryPath } from '@dr.pogodin/react-native-fs';

import { App } from './src/App';

setUp({ cache: `${CachesDirectoryPath}/lapidary` });
const { llm } = models;
const shown = [llm.pebble, llm.gemma3_270m, llm.gemma3_1b, llm.gemma4_e2b, llm.gemma4_e4b];
AppRegistry.registerComponent('LapidaryExample', () => () => <App models={shown} />);
