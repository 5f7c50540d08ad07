import { useEffect, useState } from 'react';
import { SafeAreaView, StatusBar, StyleSheet, View } from 'react-native';
import { SlidingWindowContextStrategy, useLLM, type Host, type ModelEntry } from 'react-native-lapidary';

import { Chat } from './Chat';
import { Picker } from './Picker';
import { PlanCard } from './PlanCard';
import { Progress } from './Progress';
import { StatsBar } from './StatsBar';
import { colours } from './look';

const CONTEXT = 2048;
/** Of a chat that goes on and on, the oldest turns are left out; the stats bar says so. */
const CHAT = { contextStrategy: new SlidingWindowContextStrategy(512) };

export interface AppProps {
  models: ModelEntry[];
  /** Where engines are; in this app without it. */
  host?: Host;
}

/** Pick a model, see what it takes, load it, and talk to it. */
export function App({ models, host }: AppProps) {
  const [model, pick] = useState<ModelEntry>(models[0]!);
  const [isWanted, want] = useState(false);
  const llm = useLLM({ model, preventLoad: !isWanted, loadOptions: { context: CONTEXT }, host });
  const { configure } = llm;
  useEffect(() => configure({ chatConfig: CHAT }), [configure]);
  const choose = (next: ModelEntry) => {
    want(false);
    pick(next);
  };
  return (
    <SafeAreaView style={styles.page}>
      <StatusBar barStyle="dark-content" />
      <View style={styles.column}>
        <Picker models={models} picked={model} onPick={choose} />
        {!llm.isReady && <PlanCard llm={llm} isWanted={isWanted} onLoad={want} />}
        {isWanted && !llm.isReady && <Progress llm={llm} />}
        {llm.isReady && <Chat llm={llm} onUnload={() => want(false)} />}
        <StatsBar llm={llm} />
      </View>
    </SafeAreaView>
  );
}

const styles = StyleSheet.create({
  page: { flex: 1, backgroundColor: colours.page },
  column: { flex: 1, width: '100%', maxWidth: 720, alignSelf: 'center', padding: 16, gap: 12 },
});
