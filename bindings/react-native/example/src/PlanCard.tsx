import { StyleSheet, Text, View } from 'react-native';
import type { LLMType } from 'react-native-lapidary';

import { Button } from './Button';
import { bytes, look } from './look';

export interface PlanCardProps {
  llm: LLMType;
  isWanted: boolean;
  onLoad: (wanted: boolean) => void;
}

/** What the model takes, before it is taken. */
export function PlanCard({ llm, isWanted, onLoad }: PlanCardProps) {
  const { plan, error } = llm;
  return (
    <View style={look.card}>
      <Text style={look.title}>Memory plan</Text>
      {plan ? (
        <>
          <Text style={look.text}>
            {bytes(plan.totalBytes)} on {plan.backend} ({plan.device})
          </Text>
          <Text style={look.soft}>
            {bytes(plan.weightBytes)} of weights, {bytes(plan.kvBytes)} for {plan.context} tokens,{' '}
            {bytes(plan.activationBytes)} to compute with
          </Text>
          {plan.shortage !== null && <Text style={look.wrong}>{plan.shortage}</Text>}
        </>
      ) : (
        <Text style={look.soft}>
          {isWanted ? 'Known as soon as the model is here.' : 'The model is not on this device yet.'}
        </Text>
      )}
      {error && (
        <Text style={look.wrong} role="alert">
          {error.message} ({error.code})
        </Text>
      )}
      <View style={styles.row}>
        {isWanted && llm.phase !== 'failed' ? (
          <Button title="Cancel" plain onPress={() => onLoad(false)} />
        ) : (
          <Button title={plan ? 'Load' : 'Download and load'} onPress={() => retry(isWanted, onLoad)} />
        )}
      </View>
    </View>
  );
}

/** After a failure, the hook tries again when it is asked anew. */
function retry(isWanted: boolean, onLoad: (wanted: boolean) => void): void {
  if (isWanted) onLoad(false);
  setTimeout(() => onLoad(true), 0);
}

const styles = StyleSheet.create({ row: { flexDirection: 'row', paddingTop: 6 } });
