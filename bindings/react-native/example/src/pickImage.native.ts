import { launchImageLibrary } from 'react-native-image-picker';

/** A photo that the user picks, as the address of a file; `null` for none. */
export async function pickImage(): Promise<string | null> {
  const { assets } = await launchImageLibrary({ mediaType: 'photo', maxWidth: 1024, maxHeight: 1024 });
  return assets?.[0]?.uri ?? null;
}
