import { useRef, useState } from 'react';
import { FlatList, Image, StyleSheet, Text, TextInput, View } from 'react-native';
import type { LLMType, Message } from 'react-native-lapidary';

import { Button } from './Button';
import { colours, look } from './look';
import { pickImage } from './pickImage';
import { record, type Recording } from './record';

export interface ChatProps {
  llm: LLMType;
  onUnload: () => void;
}

interface Attached {
  imagePath?: string;
  voice?: { samples: Int16Array; rate: number };
}

export function Chat({ llm, onUnload }: ChatProps) {
  const [text, setText] = useState('');
  const [attached, attach] = useState<Attached>({});
  const [recording, setRecording] = useState<Recording | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const list = useRef<FlatList<Message>>(null);
  const { info, isGenerating, messageHistory, response, thinking, error } = llm;
  // While an answer comes it is not in the history yet.
  const coming: Message[] = isGenerating ? [{ role: 'assistant', content: response || '…' }] : [];
  const send = () => {
    const { imagePath, voice } = attached;
    const media = voice ? [{ type: 'pcm' as const, ...voice }] : undefined;
    setText('');
    attach({});
    // What goes wrong is in `error`, and stands in the page.
    llm.sendMessage(text.trim(), { imagePath, media }).catch(() => setText(text));
  };
  const tried = (work: () => Promise<void>) => {
    setProblem(null);
    work().catch((thrown: Error) => setProblem(thrown.message));
  };
  const image = () =>
    tried(async () => {
      const imagePath = await pickImage();
      if (imagePath) attach({ ...attached, imagePath });
    });
  const voice = () =>
    tried(async () => {
      if (!recording) return setRecording(await record());
      setRecording(null);
      attach({ ...attached, voice: await recording.stop() });
    });
  const takes = (what: 'image' | 'audio') => info?.input.includes(what) ?? false;
  const isEmpty = !text.trim() && !attached.imagePath && !attached.voice;
  return (
    <View style={styles.all}>
      <FlatList
        ref={list}
        style={styles.list}
        contentContainerStyle={styles.inside}
        data={[...messageHistory, ...coming]}
        keyExtractor={(_, index) => String(index)}
        renderItem={({ item }) => <Bubble message={item} />}
        onContentSizeChange={() => list.current?.scrollToEnd({ animated: false })}
        ListEmptyComponent={<Text style={look.soft}>Say something.</Text>}
      />
      {thinking !== '' && isGenerating && <Text style={look.soft}>{thinking}</Text>}
      {(problem ?? error) && (
        <Text style={look.wrong} role="alert">
          {problem ?? `${error!.message} (${error!.code})`}
        </Text>
      )}
      {attached.imagePath && (
        <Image
          aria-label="the image to send"
          source={{ uri: attached.imagePath }}
          style={styles.thumbnail}
        />
      )}
      {attached.voice && <Text style={look.soft}>{seconds(attached.voice)} s of voice</Text>}
      <TextInput
        aria-label="message"
        multiline
        onChangeText={setText}
        placeholder="Message"
        placeholderTextColor={colours.soft}
        style={[look.card, look.text, styles.input]}
        value={text}
      />
      <View style={styles.row}>
        <Button title="Image" plain disabled={!takes('image')} onPress={image} />
        <Button
          title={recording ? 'Stop recording' : 'Voice'}
          plain
          disabled={!takes('audio')}
          onPress={voice}
        />
        <View style={styles.space} />
        <Button title="Unload" plain onPress={onUnload} />
        {isGenerating ? (
          <Button title="Stop" onPress={llm.interrupt} />
        ) : (
          <Button title="Send" disabled={isEmpty} onPress={send} />
        )}
      </View>
    </View>
  );
}

function seconds({ samples, rate }: { samples: Int16Array; rate: number }): string {
  return (samples.length / rate).toFixed(1);
}

function Bubble({ message }: { message: Message }) {
  const { role, content, mediaPath, media, toolCalls } = message;
  return (
    <View style={[look.card, role === 'user' && styles.mine]}>
      <Text style={look.soft}>{role === 'user' ? 'You' : 'Model'}</Text>
      {mediaPath && (
        <Image aria-label="an image" source={{ uri: mediaPath }} style={styles.picture} />
      )}
      {media && <Text style={look.soft}>voice</Text>}
      {toolCalls?.map((call) => (
        <Text key={call.id} style={look.soft}>
          {call.toolName}({JSON.stringify(call.arguments)})
        </Text>
      ))}
      {content !== '' && (
        <Text selectable style={look.text}>
          {content}
        </Text>
      )}
    </View>
  );
}

const styles = StyleSheet.create({
  all: { flex: 1, gap: 8 },
  list: { flex: 1 },
  inside: { gap: 8, paddingVertical: 4 },
  mine: { backgroundColor: colours.mine, alignSelf: 'flex-end', maxWidth: '90%' },
  picture: { width: 160, height: 160, borderRadius: 6 },
  thumbnail: { width: 64, height: 64, borderRadius: 6 },
  input: { minHeight: 64, textAlignVertical: 'top' },
  row: { flexDirection: 'row', gap: 8, alignItems: 'center' },
  space: { flex: 1 },
});
