/** What a microphone hears, until it is stopped. */
export interface Recording {
  stop(): Promise<{ samples: Int16Array; rate: number }>;
}

const RATE = 16_000;
const WORKLET = `registerProcessor('keep', class extends AudioWorkletProcessor {
  process([[channel]]) { if (channel) this.port.postMessage(channel.slice()); return true; }
});`;

export async function record(): Promise<Recording> {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  // The browser resamples.
  const context = new AudioContext({ sampleRate: RATE });
  const url = URL.createObjectURL(new Blob([WORKLET], { type: 'text/javascript' }));
  await context.audioWorklet.addModule(url);
  URL.revokeObjectURL(url);
  const node = new AudioWorkletNode(context, 'keep');
  const chunks: Float32Array[] = [];
  node.port.onmessage = ({ data }: { data: Float32Array }) => chunks.push(data);
  context.createMediaStreamSource(stream).connect(node);
  return {
    async stop() {
      for (const track of stream.getTracks()) track.stop();
      await context.close();
      const samples = new Int16Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
      let at = 0;
      for (const chunk of chunks) {
        for (const value of chunk) {
          samples[at++] = Math.max(-32_768, Math.min(32_767, Math.round(value * 32_767)));
        }
      }
      return { samples, rate: RATE };
    },
  };
}
