import { Pressable, Text } from 'react-native';

import { look } from './look';

export interface ButtonProps {
  title: string;
  onPress: () => void;
  plain?: boolean;
  disabled?: boolean;
}

export function Button({ title, onPress, plain = false, disabled = false }: ButtonProps) {
  return (
    <Pressable
      role="button"
      aria-disabled={disabled}
      disabled={disabled}
      onPress={onPress}
      style={[look.button, plain && look.plain, disabled && look.off]}
    >
      <Text style={plain ? look.plainLabel : look.label}>{title}</Text>
    </Pressable>
  );
}
