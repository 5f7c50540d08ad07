import { Pressable, ScrollView, StyleSheet, Text } from 'react-native';
import type { ModelEntry } from 'react-native-lapidary';

import { colours, look } from './look';

export interface PickerProps {
  models: ModelEntry[];
  picked: ModelEntry;
  onPick: (model: ModelEntry) => void;
}

export function Picker({ models, picked, onPick }: PickerProps) {
  return (
    <ScrollView horizontal style={styles.row} contentContainerStyle={styles.inside}>
      {models.map((model) => {
        const selected = model.source === picked.source;
        return (
          <Pressable
            key={model.source}
            role="radio"
            aria-checked={selected}
            onPress={() => onPick(model)}
            style={[styles.choice, selected && styles.picked]}
          >
            <Text style={[look.text, selected && styles.pickedText]}>
              {model.title ?? model.source}
            </Text>
          </Pressable>
        );
      })}
    </ScrollView>
  );
}

const styles = StyleSheet.create({
  row: { flexGrow: 0 },
  inside: { gap: 8, paddingVertical: 2 },
  choice: {
    borderColor: colours.line,
    borderWidth: 1,
    borderRadius: 18,
    paddingVertical: 7,
    paddingHorizontal: 14,
    backgroundColor: colours.card,
  },
  picked: { borderColor: colours.accent, backgroundColor: colours.accent },
  pickedText: { color: colours.onAccent },
});
