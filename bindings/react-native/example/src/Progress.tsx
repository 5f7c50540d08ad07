import { StyleSheet, Text, View } from 'react-native';
import type { LLMType } from 'react-native-lapidary';

import { colours, look } from './look';

const WORDS: Record<string, string> = {
  downloading: 'Downloading',
  opening: 'Opening',
  loading: 'Loading',
};

export function Progress({ llm }: { llm: LLMType }) {
  const word = WORDS[llm.phase];
  if (!word) return null;
  const fraction = llm.phase === 'downloading' ? llm.downloadProgress : llm.loadProgress;
  const percent = Math.floor(fraction * 100);
  return (
    <View
      style={look.card}
      role="progressbar"
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={percent}
    >
      <Text style={look.text}>
        {word}: {percent} %
      </Text>
      <View style={styles.track}>
        <View style={[styles.bar, { width: `${percent}%` }]} />
      </View>
    </View>
  );
}

const styles = StyleSheet.create({
  track: { height: 8, borderRadius: 4, backgroundColor: colours.line, overflow: 'hidden' },
  bar: { height: 8, backgroundColor: colours.accent },
});
