import { StyleSheet, Text } from 'react-native';
import type { LLMType } from 'react-native-lapidary';

import { look } from './look';

/** How the last answer went. */
export function StatsBar({ llm }: { llm: LLMType }) {
  const { stats, plan, isReady, droppedMessages } = llm;
  if (!isReady || !plan) return null;
  const words = [`${plan.model} on ${plan.backend}`];
  if (stats) {
    if (stats.firstTokenSeconds !== null) {
      words.push(`first token ${Math.round(stats.firstTokenSeconds * 1000)} ms`);
    }
    if (stats.tokensPerSecond !== null) words.push(`${stats.tokensPerSecond.toFixed(1)} tokens/s`);
    words.push(`${stats.promptTokens} + ${stats.newTokens} tokens`);
    if (stats.reusedTokens > 0) words.push(`${stats.reusedTokens} reused`);
    if (stats.finishReason === 'cancelled') words.push('stopped');
  }
  if (droppedMessages > 0) words.push(`${droppedMessages} old messages left out`);
  return (
    <Text style={[look.soft, styles.bar]} testID="stats">
      {words.join(' · ')}
    </Text>
  );
}

const styles = StyleSheet.create({ bar: { textAlign: 'center' } });
