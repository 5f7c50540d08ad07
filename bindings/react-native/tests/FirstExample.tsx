import { useState } from 'react';
import { Button, Text, TextInput, View } from 'react-native';
import { models, useLLM } from 'react-native-lapidary';

export default function App() {
  const [text, setText] = useState('');
  const llm = useLLM({ model: models.llm.pebble });
  if (llm.error) return <Text>{llm.error.message}</Text>;
  if (!llm.isReady) return <Text>Loading: {Math.round(llm.downloadProgress * 100)} %</Text>;
  return (
    <View>
      <Text testID="answer">{llm.response}</Text>
      <TextInput value={text} onChangeText={setText} placeholder="Ask something" />
      {llm.isGenerating ? (
        <Button title="Stop" onPress={llm.interrupt} />
      ) : (
        <Button title="Send" onPress={() => llm.sendMessage(text)} />
      )}
    </View>
  );
}
