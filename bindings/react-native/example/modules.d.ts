// Of the app on a phone alone; not installed here.

declare module 'react-native-image-picker' {
  export function launchImageLibrary(options: {
    mediaType: 'photo';
    maxWidth?: number;
    maxHeight?: number;
  }): Promise<{ assets?: { uri?: string }[] }>;
}
