import { StyleSheet } from 'react-native';

export const colours = {
  page: '#f6f5f2',
  card: '#ffffff',
  line: '#dcd8d0',
  text: '#22201c',
  soft: '#6b665d',
  accent: '#1d5c4d',
  onAccent: '#ffffff',
  mine: '#e3efe9',
  wrong: '#a3261b',
};

export const look = StyleSheet.create({
  card: {
    backgroundColor: colours.card,
    borderColor: colours.line,
    borderWidth: 1,
    borderRadius: 10,
    padding: 12,
    gap: 6,
  },
  title: { fontSize: 16, fontWeight: '600', color: colours.text },
  text: { fontSize: 15, lineHeight: 21, color: colours.text },
  soft: { fontSize: 13, lineHeight: 18, color: colours.soft },
  wrong: { fontSize: 14, lineHeight: 20, color: colours.wrong },
  button: {
    backgroundColor: colours.accent,
    borderRadius: 8,
    paddingVertical: 10,
    paddingHorizontal: 14,
    alignItems: 'center',
    justifyContent: 'center',
  },
  plain: { backgroundColor: 'transparent', borderColor: colours.line, borderWidth: 1 },
  off: { opacity: 0.4 },
  label: { color: colours.onAccent, fontSize: 15, fontWeight: '600' },
  plainLabel: { color: colours.text, fontSize: 15 },
});

export function bytes(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)} GB`;
  return `${Math.max(1, Math.round(count / 1e6))} MB`;
}
